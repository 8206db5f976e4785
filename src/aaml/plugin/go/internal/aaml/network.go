package aaml

import (
	"fmt"
	"math"
)

var noFloor = float32(math.Inf(-1))

// network is the forward pass of a network of aaml.learning.networks, in float32.
type network struct {
	nodes, pairs, pod int // how many features of each it knows: the first of the lists
	graph             bool
	encoder           []dense // MLP: two layers; GNN: three convolutions, the first of which has a row more, the hub's
	halves            []dense // GNN: half of the convolutions' weights for the nodes, without the hub's row

	embedding, pair, context, hidden, out, direct dense
	valueHidden, valueOut                         *dense // of action values (dueling)

	features
	embedded, made, at, atChoice, wide, score, straight []float32
}

// layers are the tensors of a model file by their names in torch: weights [out, in], biases [out].
type layers struct {
	Weights map[string][][]float32 `json:"weights"`
	Biases  map[string][]float32   `json:"biases"`
}

// newNetwork builds a network of its layers, all of which must fit together.
func newNetwork(encoder, head string, width, nodes, pairs, pod int, l layers) (*network, error) {
	n := &network{nodes: nodes, pairs: pairs, pod: pod, graph: encoder == "gnn"}
	var wrong error
	layer := func(name string, in, out int, biased bool) dense {
		return named(&wrong, l, name+".weight", name+".bias", in, out, biased)
	}
	context := width + pairs + pod
	switch encoder {
	case "mlp":
		n.encoder = []dense{layer("encoder.first", nodes, width, true), layer("encoder.second", width, width, true)}
	case "gnn":
		for i, in := range []int{nodes + 1, width, width} {
			name := fmt.Sprintf("encoder.layers.%d", i)
			layer := named(&wrong, l, name+".lin.weight", name+".bias", in, width, true)
			n.encoder = append(n.encoder, layer)
		}
	default:
		return nil, fmt.Errorf("encoder %q; expected mlp or gnn", encoder)
	}
	n.embedding, n.pair = layer("scorer.embedding", width, width, true), layer("scorer.pairs", pairs, width, false)
	n.context, n.hidden = layer("scorer.context", context, width, false), layer("scorer.hidden", width, width, true)
	n.out, n.direct = layer("scorer.out", width, 1, true), layer("scorer.direct", pairs, 1, false)
	switch head {
	case "actor":
	case "q":
		hidden, out := layer("value.hidden", context, width, true), layer("value.out", width, 1, true)
		n.valueHidden, n.valueOut = &hidden, &out
	default:
		return nil, fmt.Errorf("head %q; expected actor or q", head)
	}
	if wrong != nil {
		return nil, wrong
	}
	if n.graph {
		n.halves = []dense{n.encoder[0].half(nodes), n.encoder[1].half(width), n.encoder[2].half(width)}
	}
	return n, nil
}

func named(wrong *error, l layers, weight, bias string, in, out int, biased bool) dense {
	rows, ok := l.Weights[weight]
	fits := ok && len(rows) == out
	for _, row := range rows {
		fits = fits && len(row) == in
	}
	biases := l.Biases[bias]
	if biased {
		fits = fits && len(biases) == out
	} else {
		biases = nil
	}
	if !fits {
		if *wrong == nil {
			*wrong = fmt.Errorf("layer %s is missing, or not of shape [%d, %d] with its bias", weight, out, in)
		}
		return dense{}
	}
	return newDense(rows, biases)
}

// scores writes the preference for each choice of a view: action values, or logits.
func (n *network) scores(v *view, scores []float64) {
	n.fill(v)
	kinds, choices := len(v.kinds), len(v.kindOf)
	width := n.embedding.width
	if n.graph {
		n.convolve(v)
	} else {
		n.made, n.embedded = sized(n.made, padded(kinds)*width), sized(n.embedded, padded(kinds)*width)
		n.encoder[0].apply(n.made, n.features.nodes, nodeWidth, kinds, n.encoder[0].bias, 0, 0)
		n.encoder[1].apply(n.embedded, n.made, width, kinds, n.encoder[1].bias, 0, 0)
	}
	context := n.summarize(v)
	base := n.context.row(context)
	for i, value := range n.embedding.bias {
		base[i] += value
	}
	n.at, n.atChoice = sized(n.at, padded(kinds)*width), sized(n.atChoice, padded(choices)*width)
	n.embedding.apply(n.at, n.embedded, width, kinds, base, 0, noFloor)
	for i, kind := range v.kindOf {
		copy(n.atChoice[i*width:(i+1)*width], n.at[int(kind)*width:])
	}
	n.wide = sized(n.wide, padded(choices)*width)
	n.pair.apply(n.atChoice, n.features.pairs, pairWidth, choices, n.atChoice, width, 0)
	n.hidden.apply(n.wide, n.atChoice, width, choices, n.hidden.bias, 0, 0)
	n.score = sized(n.score, padded(choices)*blockColumns)
	n.out.apply(n.score, n.wide, width, choices, n.out.bias, 0, noFloor)
	n.direct.apply(n.score, n.features.pairs, pairWidth, choices, n.score, blockColumns, noFloor)
	for i := range choices {
		scores[i] = float64(n.score[i*blockColumns])
	}
	if n.valueHidden != nil {
		n.duel(v, context, scores)
	}
}

// summarize returns the cluster and the pod in one vector: the mean embedding of the capacity, the mean pair of the
// choices, and the pod.
func (n *network) summarize(v *view) []float32 {
	width := n.embedding.in
	context := make([]float32, width+n.pairs+n.pod)
	total := float32(0)
	for i, count := range v.count {
		if v.kinds[i].capacity {
			addScaled(context[:width], n.embedded[i*n.embedding.width:], float32(count))
			total += float32(count)
		}
	}
	scale(context[:width], max(total, 1))
	pairs := context[width : width+n.pairs]
	for i, count := range v.chosen {
		addScaled(pairs, n.features.pairs[i*pairWidth:], float32(count))
	}
	scale(pairs, max(float32(v.feasible), 1))
	copy(context[width+n.pairs:], n.features.pod)
	return context
}

// duel adds the state's value to what each choice is better or worse than their mean.
func (n *network) duel(v *view, context []float32, scores []float64) {
	hidden := n.valueHidden.row(context)
	for i := range hidden {
		hidden[i] = max(hidden[i], 0)
	}
	value, mean := float64(n.valueOut.row(hidden)[0]), 0.0
	for i, score := range scores {
		mean += v.chosen[i] * score
	}
	mean /= max(float64(v.feasible), 1)
	for i := range scores {
		scores[i] = float64(float32(scores[i] + value - mean))
	}
}

// convolve embeds the nodes as leaves of a star: three layers relu(A X W + b), in which each vertex gets the mean over
// itself and its neighbours, with the sum of what came before added from the second on. A leaf has one neighbour, the hub;
// the hub has all N nodes, whose mean is taken before the product.
func (n *network) convolve(v *view) {
	kinds, width := len(v.kinds), n.encoder[0].width
	n.embedded, n.made = sized(n.embedded, padded(kinds)*width), sized(n.made, padded(kinds)*width)
	hub := make([]float32, n.encoder[0].in) // its only feature is that it is one
	hub[n.nodes] = 1
	values, step, in := n.features.nodes, nodeWidth, n.nodes
	for l := range n.encoder {
		layer := &n.encoder[l]
		fromHub := append([]float32(nil), layer.bias...)
		for i, value := range hub {
			layer.add(fromHub, i, value/2)
		}
		mean := append([]float32(nil), hub...)
		for i, count := range v.count {
			addScaled(mean[:in], values[i*step:], float32(count))
		}
		scale(mean, float32(v.nodes)+1)
		next := layer.row(mean)
		for i := range next {
			next[i] = max(next[i], 0)
		}
		half := &n.halves[l]
		if l == 0 {
			half.apply(n.embedded, values, step, kinds, fromHub, 0, 0)
			hub = next[:layer.out]
		} else {
			half.apply(n.made, values, step, kinds, fromHub, 0, 0)
			total := n.embedded[:kinds*width]
			for i, value := range n.made[:kinds*width] {
				total[i] += value
			}
			for i := range hub {
				hub[i] += next[i]
			}
		}
		values, step, in = n.embedded, width, layer.out
	}
}

// addScaled adds factor times the first values to a sum.
func addScaled(sum, values []float32, factor float32) {
	values = values[:len(sum)]
	for i, value := range values {
		sum[i] += factor * value
	}
}

func scale(values []float32, divisor float32) {
	for i := range values {
		values[i] /= divisor
	}
}
