package aaml

import (
	"fmt"
	"math"
	"slices"
)

// Scores of nodes with GPUs, one device at a time where a pod takes a share: aaml.policies.gpu.

const (
	largestCPU, largestGPU = 128_000.0, 8_000.0 // of the openb cluster's nodes: the unit of amounts
	unfit                  = -1                 // the score where the filters find room and the devices do not
	half, third            = 50, 33
)

// deviceScorer scores a pod on each kind of node once; a share takes the device that scored best.
type deviceScorer struct {
	score     func(k *facts, pod *request) (float64, int)
	otherwise *heuristic // decides in a cluster without GPUs, where all nodes are alike without it
	alike     bool       // whether they are
	learned   *learned
	grade     func(emptyS, restS float64) float64 // of time: nodes of a lower one are better, whatever their score

	scored  []float64 // [U]
	isKnown []bool    // [U]
}

func newDeviceScorer(p *policyFile, expected *fragments) (*deviceScorer, error) {
	if len(p.Features.Devices) > 0 {
		if expected == nil {
			return nil, fmt.Errorf("a scorer of devices without expected pods")
		}
		l, err := newLearned(p, expected)
		if err != nil {
			return nil, err
		}
		return &deviceScorer{score: l.score, learned: l}, nil
	}
	switch p.Name {
	case "fgd":
		if expected == nil {
			return nil, fmt.Errorf("fgd without expected pods")
		}
		return &deviceScorer{score: expected.gradient, alike: true}, nil
	case "best-fit":
		return &deviceScorer{score: bestFit, otherwise: &heuristic{score: bestFitOfMemory}}, nil
	case "nilas", "lava":
		return &deviceScorer{score: bestFit, otherwise: &heuristic{score: bestFitOfMemory}, grade: grades[p.Name]}, nil
	case "dot-product":
		return &deviceScorer{score: dotProduct, otherwise: &heuristic{score: dotProductOfMemory}}, nil
	case "gpu-packing":
		return &deviceScorer{score: gpuPacking}, nil
	case "gpu-clustering":
		return &deviceScorer{score: gpuClustering}, nil
	}
	return nil, fmt.Errorf("a scorer of devices %q that is not known to this plugin", p.Name)
}

// scores writes the score of each choice of a view.
func (d *deviceScorer) scores(v *view, scores []float64) {
	d.usual(v, scores)
	if d.grade == nil || v.table == nil {
		return
	}
	for i, kind := range v.kindOf {
		scores[i] -= 1000 * d.grade(v.kinds[kind].life.emptyS(v.table, v.nowS), v.pod.restS)
	}
}

// grades are those of aaml.policies.lifetime_rules, after Ling et al., LAVA, MLSys 2025.
var grades = map[string]func(emptyS, restS float64) float64{
	"nilas": func(emptyS, restS float64) float64 { return math.Ceil(math.Log2(1 + max(restS-emptyS, 0)/60)) },
	"lava": func(emptyS, restS float64) float64 {
		longer := lifetimeClass(emptyS) - lifetimeClass(restS)
		switch {
		case emptyS <= 0:
			return 100
		case longer > 0:
			return longer
		}
		return 20 - longer
	},
}

func lifetimeClass(seconds float64) float64 { return math.Floor(math.Log10(max(seconds, 60) / 60)) }

func (d *deviceScorer) usual(v *view, scores []float64) {
	if !slices.ContainsFunc(v.kinds, func(k *facts) bool { return k.devices != "" }) {
		if d.otherwise != nil {
			d.otherwise.scores(v, scores)
			return
		}
		if d.alike {
			clear(scores)
			return
		}
	}
	if d.learned != nil {
		d.learned.look(v)
	}
	d.scored, d.isKnown = sized(d.scored, len(v.kinds)), sized(d.isKnown, len(v.kinds))
	clear(d.isKnown)
	for i, kind := range v.kindOf {
		if !d.isKnown[kind] {
			d.scored[kind], d.isKnown[kind] = unfit, true
			if k := v.kinds[kind]; k.room(&v.pod) {
				d.scored[kind], _ = d.score(k, &v.pod)
			}
		}
		scores[i] = d.scored[kind]
	}
}

// device returns the device that a share takes on a node, -1 where the score has no say.
func (d *deviceScorer) device(k *facts, pod *request) int {
	if !pod.gpu.share() || !k.room(pod) {
		return -1
	}
	_, device := d.score(k, pod)
	return device
}

func (k *facts) deviceCount() int { return len(k.devices) / 2 }

// free returns the free thousandths of all devices.
func (k *facts) free() int64 {
	total := int64(0)
	for g := range k.deviceCount() {
		total += k.device(g)
	}
	return total
}

// whole returns how many devices are entirely free.
func (k *facts) whole() int64 {
	count := int64(0)
	for g := range k.deviceCount() {
		if k.device(g) >= deviceMilli {
			count++
		}
	}
	return count
}

// repeated says whether a device before this one has as much left: a share scores the same there, and the first is taken.
func (k *facts) repeated(device int) bool {
	for g := range device {
		if k.device(g) == k.device(device) {
			return true
		}
	}
	return false
}

// room says whether the node has what the pod asks for.
func (k *facts) room(pod *request) bool {
	if pod.memory > k.memory-k.usedMemory || pod.cpu > k.cpu-k.usedCPU || k.usedPods >= k.pods {
		return false
	}
	if pod.gpu.milli <= 0 {
		return true
	}
	need, enough := pod.gpu.milli, int64(0)
	if pod.gpu.count != 1 {
		need = deviceMilli
	}
	for g := range k.deviceCount() {
		if k.device(g) >= need {
			enough++
		}
	}
	return enough > 0 && enough >= pod.gpu.count && pod.gpu.accepts(k.model)
}

func logisticScore(gained float64) float64 { return 1 / (1 + math.Exp(-gained/1000)) * 100 }

func bestFit(k *facts, pod *request) (float64, int) {
	cpu := float64(k.cpu-k.usedCPU-pod.cpu) / largestCPU
	gpu := float64(k.free()-pod.gpu.count*pod.gpu.milli) / largestGPU
	return (1 - (0.5*cpu + 0.5*gpu)) * 100, -1
}

func dotProduct(k *facts, pod *request) (float64, int) {
	cpu := (float64(k.cpu-k.usedCPU) / largestCPU) * (float64(pod.cpu) / largestCPU)
	gpu := (float64(k.free()) / largestGPU) * (float64(pod.gpu.count*pod.gpu.milli) / largestGPU)
	return 100 * (1 - 0.5*(cpu+gpu)), -1
}

// gpuClustering prefers nodes where pods of the same kind are, and most where only such are.
func gpuClustering(k *facts, pod *request) (float64, int) {
	kind := pod.gpu.kind()
	if kind == 0 {
		return 0, -1
	}
	base := math.Floor((largestGPU - float64(k.free())) * 25 / largestGPU)
	switch same := uint64(1) << kind; {
	case k.podKinds == 0:
		return base + 25, -1
	case k.podKinds&same == 0:
		return base, -1
	case k.podKinds == same:
		return base + 75, -1
	}
	return base + 50, -1
}

// gpuPacking prefers devices in use to free devices of a node in use, and those to a node that is not in use.
func gpuPacking(k *facts, pod *request) (float64, int) {
	milli, count := pod.gpu.milli, pod.gpu.count
	if milli <= 0 {
		return 0, -1
	}
	whole := k.whole()
	if int(whole) == k.deviceCount() {
		return float64(max(third-whole, whole)), -1
	}
	var fitting []int64
	for g := range k.deviceCount() {
		if free := k.device(g); free >= milli {
			fitting = append(fitting, free)
		}
	}
	slices.Sort(fitting)
	taken, tenths := int64(0), int64(0)
	for _, free := range fitting {
		if taken == count {
			break
		}
		if free >= deviceMilli {
			return float64(max(half-(count-taken), third)), -1
		}
		tenths += free / 10
		taken++
	}
	return float64(max(100-tenths/10, half)), -1
}

// bestFitOfMemory and dotProductOfMemory are the same over CPU and memory, for a cluster without GPUs.
func bestFitOfMemory(h *heuristic, f *facts, pod *request) float64 {
	score := func(size, used, asked, largest float64) float64 { return 50 * (1 - (size-(used+asked))/largest) }
	return score(atLeast1(f.cpu), float64(f.scoredCPU), float64(pod.scoredCPU), h.maxCPU) +
		score(atLeast1(f.memory), float64(f.scoredMemory), float64(pod.scoredMemory), h.maxMemory)
}

func dotProductOfMemory(h *heuristic, f *facts, pod *request) float64 {
	score := func(size, used, asked, largest float64) float64 { return 50 * (1 - (size-used)/largest*asked/largest) }
	return score(atLeast1(f.cpu), float64(f.scoredCPU), float64(pod.scoredCPU), h.maxCPU) +
		score(atLeast1(f.memory), float64(f.scoredMemory), float64(pod.scoredMemory), h.maxMemory)
}
