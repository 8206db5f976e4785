package aaml

import "math"

// FeaturesVersion rises when a feature is computed in another way. New features only join the end of the lists.
const FeaturesVersion = 1

// What a node, a pod on a node, and a pod show: the names, in the order, of aaml.scheduling.observation.
var (
	nodeFeatures = []string{
		"cpu_used", "memory_used", "pods_used", "cpu_used_minus_mean", "memory_used_minus_mean", "cpu_size", "memory_size",
		"cpu_memory_imbalance", "empty", "gpu_free", "largest_free_device", "whole_free_devices", "shared_devices",
		"gpu_count", "cordoned", "capacity", "cpu_in_1m", "memory_in_1m", "gpu_in_1m", "cpu_in_10m", "memory_in_10m",
		"gpu_in_10m", "cpu_in_1h", "memory_in_1h", "gpu_in_1h", "empty_in",
	}
	pairFeatures = []string{
		"feasible", "cpu_after", "memory_after", "cpu_after_minus_mean", "memory_after_minus_mean", "imbalance_after",
		"cpu_after_rank", "memory_after_rank", "variance_rank", "free_after_rank", "device_left", "gpu_free_after",
		"siblings", "fragmentation_growth", "newly_used", "fragmentation_rank", "cpu_variance_growth",
		"memory_variance_growth", "cpu_gap_after", "memory_gap_after", "cpu_gap", "memory_gap", "extends", "outlived",
		"cpu_growth_scaled", "memory_growth_scaled", "cpu_gap_scaled", "memory_gap_scaled", "pods", "cpu_full_after",
		"memory_full_after",
	}
	podFeatures = []string{
		"cpu", "memory", "gpu_share", "gpu_count", "is_share", "wants_model", "lifetime", "lifetime_known", "cpu_mean",
		"memory_mean", "cpu_spread", "memory_spread", "feasible_fraction", "queue",
	}
)

const (
	nodeWidth, pairWidth, podWidth = 26, 31, 14 // how many there are
	capacityFeature                = 15         // the node feature that tells capacity from the control plane

	full      = 0.99 // from here on what is left of a resource is of use to hardly any pod
	far       = 8    // standard deviations: no node is shown to be farther from the mean
	rankTerms = 5
)

var logPods = func() (table [256]float64) {
	for i := range table {
		table[i] = math.Log1p(float64(i)) / 3
	}
	return table
}()

// features are what a view shows to a network.
type features struct {
	nodes []float32 // [U, nodeWidth]
	pairs []float32 // [V, pairWidth]
	pod   []float32 // [podWidth]

	terms []float64 // [rankTerms, V] of which choices get the ranks
	seen  []seen    // [U]
}

// seen is what the pairs of a node need again of it.
type seen struct{ cpu, memory, gapCPU, gapMemory, gpuFree, emptyS, growth float64 }

// size is what a pod that asks for so much is compared with.
type size struct {
	meanCPU, meanMemory           float64 // use of the nodes that count
	deviationCPU, deviationMemory float64 // of it
	maxCPU, maxMemory             float64 // the largest node's
	nodeCPU, nodeMemory           float64 // the mean node's
	count                         float64 // nodes that count, 1 at least
}

func atLeast1(amount int64) float64 { return float64(max(amount, 1)) }

// measure returns the sizes. It adds up anew at each decision, so nothing drifts.
func (v *view) measure() size {
	s := size{maxCPU: 1, maxMemory: 1}
	total, sumCPU, sumMemory, allCPU, allMemory := 0.0, 0.0, 0.0, 0.0, 0.0
	for i, k := range v.kinds {
		if !k.capacity {
			continue
		}
		count := v.count[i]
		total += count
		sumCPU += count * (float64(k.usedCPU) / atLeast1(k.cpu))
		sumMemory += count * (float64(k.usedMemory) / atLeast1(k.memory))
		allCPU += count * float64(k.cpu)
		allMemory += count * float64(k.memory)
		s.maxCPU, s.maxMemory = max(s.maxCPU, float64(k.cpu)), max(s.maxMemory, float64(k.memory))
	}
	s.count = max(total, 1)
	s.meanCPU, s.meanMemory = sumCPU/s.count, sumMemory/s.count
	s.nodeCPU, s.nodeMemory = max(allCPU/s.count, 1), max(allMemory/s.count, 1)
	spreadCPU, spreadMemory := 0.0, 0.0
	for i, k := range v.kinds {
		if k.capacity {
			gapCPU := float64(k.usedCPU)/atLeast1(k.cpu) - s.meanCPU
			gapMemory := float64(k.usedMemory)/atLeast1(k.memory) - s.meanMemory
			spreadCPU += v.count[i] * (gapCPU * gapCPU)
			spreadMemory += v.count[i] * (gapMemory * gapMemory)
		}
	}
	s.deviationCPU, s.deviationMemory = math.Sqrt(spreadCPU/s.count), math.Sqrt(spreadMemory/s.count)
	return s
}

// fill computes the features of a view as `fill` of aaml.scheduling.observation does: in float64, kept as float32.
func (f *features) fill(v *view) {
	u, n := len(v.kinds), len(v.kindOf)
	f.nodes, f.pairs, f.pod = sized(f.nodes, padded(u)*nodeWidth), sized(f.pairs, padded(n)*pairWidth), sized(f.pod, podWidth)
	f.seen, f.terms = sized(f.seen, u), sized(f.terms, rankTerms*n)
	s := v.measure()
	for i, k := range v.kinds {
		row := f.nodes[i*nodeWidth : (i+1)*nodeWidth]
		f.fillNode(row, &f.seen[i], k, &s)
		if v.table != nil && k.life != nil {
			f.seen[i].emptyS = fillExpected(row[16:], v, k)
		}
		if f.seen[i].growth = 0; v.fragments != nil {
			f.seen[i].growth = v.fragments.growth(k, &v.pod)
		}
	}
	p := pairing{size: s, askedCPU: float64(v.pod.cpu), askedMemory: float64(v.pod.memory), keep: 1 - 1/s.count, gpu: v.pod.gpu, expects: v.table != nil, restS: v.pod.restS}
	p.sizeCPU, p.sizeMemory = max(p.askedCPU/s.nodeCPU, 1e-6), max(p.askedMemory/s.nodeMemory, 1e-6)
	p.unit = p.sizeCPU*(s.deviationCPU+p.sizeCPU) + p.sizeMemory*(s.deviationMemory+p.sizeMemory)
	for i, kind := range v.kindOf {
		terms := p.fill(f.pairs[i*pairWidth:(i+1)*pairWidth], v.kinds[kind], &f.seen[kind], v.siblings[i])
		for t, value := range terms {
			f.terms[t*n+i] = value
		}
	}
	for t, column := range [rankTerms]int{6, 7, 8, 9, 15} {
		rank(f.terms[t*n:(t+1)*n], f.pairs, column)
	}
	f.fillPod(v, &s)
}

func (f *features) fillNode(row []float32, out *seen, k *facts, s *size) {
	_ = row[nodeWidth-1]
	cpu, memory := float64(k.usedCPU)/atLeast1(k.cpu), float64(k.usedMemory)/atLeast1(k.memory)
	out.cpu, out.memory, out.gapCPU, out.gapMemory = cpu, memory, cpu-s.meanCPU, memory-s.meanMemory
	row[0], row[1] = float32(cpu), float32(memory)
	row[2] = float32(float64(k.usedPods) / atLeast1(k.pods))
	row[3], row[4] = float32(out.gapCPU), float32(out.gapMemory)
	row[5], row[6] = float32(float64(k.cpu)/s.maxCPU), float32(float64(k.memory)/s.maxMemory)
	row[7] = float32(math.Abs(cpu - memory))
	row[8] = one(k.usedPods == 0)
	devices := len(k.devices) / 2
	free, largest, whole, shared := 0.0, 0.0, 0.0, 0.0
	for g := range devices {
		amount := float64(k.device(g))
		free += amount
		largest = max(largest, amount)
		if amount >= deviceMilli {
			whole++
		} else if amount > 0 {
			shared++
		}
	}
	out.gpuFree = free
	row[9], row[10] = 0, 0
	if devices > 0 {
		row[9], row[10] = float32(free/(1000*float64(devices))), float32(largest/1000)
	}
	row[11], row[12], row[13] = float32(whole/8), float32(shared/8), float32(float64(devices)/8)
	row[14], row[15] = one(k.cordoned), one(k.capacity)
	clear(row[16:])
	out.emptyS = 0
}

// fillExpected writes what the pods on a node are expected to leave, and returns in how many seconds it is empty.
func fillExpected(row []float32, v *view, k *facts) float64 {
	load, emptyS := k.life.expected(v.table, v.nowS)
	for h := range load {
		row[3*h] = float32(float64(load[h][0]) / atLeast1(k.cpu))
		row[3*h+1] = float32(float64(load[h][1]) / atLeast1(k.memory))
		row[3*h+2] = float32(float64(load[h][2]) / (1000 * atLeast1(int64(len(k.devices)/2))))
	}
	row[9] = float32(logMinutes(emptyS))
	return emptyS
}

// pairing is a pod with what its features on all nodes have in common.
type pairing struct {
	size
	askedCPU, askedMemory float64
	sizeCPU, sizeMemory   float64 // of a mean node's
	unit, keep            float64
	gpu                   gpuRequest
	expects               bool
	restS                 float64
}

// fill writes the features of the pod on a node and returns what ranks are made of.
func (p *pairing) fill(row []float32, k *facts, on *seen, siblings float64) [rankTerms]float64 {
	_ = row[pairWidth-1]
	nodeCPU, nodeMemory := float64(k.cpu), float64(k.memory)
	growCPU, growMemory := p.askedCPU/max(nodeCPU, 1), p.askedMemory/max(nodeMemory, 1)
	afterCPU, afterMemory := on.cpu+growCPU, on.memory+growMemory
	// Change of N times the variance when one node's use grows by d: 2 d (u - mean) + d^2 (1 - 1/N).
	variance := 2*growCPU*on.gapCPU + growCPU*growCPU*p.keep + 2*growMemory*on.gapMemory + growMemory*growMemory*p.keep
	left := (1-afterCPU)*nodeCPU/p.maxCPU + (1-afterMemory)*nodeMemory/p.maxMemory
	row[0] = 1
	row[1], row[2] = float32(min(afterCPU, 2)), float32(min(afterMemory, 2))
	// As in Python, these go on from what was kept as float32.
	row[3], row[4] = float32(float64(row[1])-p.meanCPU), float32(float64(row[2])-p.meanMemory)
	row[5] = abs32(row[1] - row[2])
	row[6], row[7], row[8], row[9], row[10] = 0, 0, 0, 0, 0
	if devices := len(k.devices) / 2; p.gpu.milli > 0 && devices > 0 {
		best := 2000.0
		for g := range devices {
			if amount := k.device(g); amount >= p.gpu.milli {
				best = min(best, float64(amount))
			}
		}
		if p.gpu.count == 1 && best <= 1000 {
			row[10] = float32((best - float64(p.gpu.milli)) / 1000)
		}
		row[11] = float32(max(on.gpuFree-float64(p.gpu.count*p.gpu.milli), 0) / (1000 * float64(devices)))
	} else if devices > 0 {
		row[11] = float32(on.gpuFree / (1000 * float64(devices)))
	} else {
		row[11] = 0
	}
	row[12] = float32(siblings / 8)
	row[13], row[15] = float32(on.growth/1000), 0
	row[14] = one(k.usedPods == 0)
	row[16], row[17] = float32(40*growCPU*on.gapCPU), float32(40*growMemory*on.gapMemory)
	row[18], row[19] = float32(8*float64(row[3])), float32(8*float64(row[4]))
	row[20], row[21] = float32(8*float64(float32(on.gapCPU))), float32(8*float64(float32(on.gapMemory)))
	row[22], row[23] = 0, 0
	if p.expects {
		row[22], row[23] = float32(logMinutes(max(p.restS-on.emptyS, 0))), float32(logMinutes(max(on.emptyS-p.restS, 0)))
	}
	row[24], row[25], row[26], row[27] = 0, 0, 0, 0
	if k.capacity {
		row[24] = bounded(growCPU * (2*on.gapCPU + growCPU*p.keep) / p.unit)
		row[25] = bounded(growMemory * (2*on.gapMemory + growMemory*p.keep) / p.unit)
		row[26] = bounded(on.gapCPU / (p.deviationCPU + p.sizeCPU))
		row[27] = bounded(on.gapMemory / (p.deviationMemory + p.sizeMemory))
	}
	if k.usedPods < int64(len(logPods)) {
		row[28] = float32(logPods[k.usedPods])
	} else {
		row[28] = float32(math.Log1p(float64(k.usedPods)) / 3)
	}
	row[29], row[30] = one(afterCPU > full), one(afterMemory > full)
	return [rankTerms]float64{afterCPU, afterMemory, variance, left, on.growth}
}

func (f *features) fillPod(v *view, s *size) {
	gpu := v.pod.gpu
	f.pod[0], f.pod[1] = float32(float64(v.pod.cpu)/s.nodeCPU), float32(float64(v.pod.memory)/s.nodeMemory)
	f.pod[2], f.pod[3] = float32(float64(gpu.milli)/1000), float32(float64(gpu.count)/8)
	f.pod[4] = one(gpu.count == 1 && 0 < gpu.milli && gpu.milli < deviceMilli)
	f.pod[5] = one(gpu.models)
	f.pod[6], f.pod[7] = 0, 0
	if v.table != nil {
		f.pod[6], f.pod[7] = float32(math.Log1p(v.pod.restS)/10), float32(v.pod.sure)
	}
	f.pod[8], f.pod[9] = float32(s.meanCPU), float32(s.meanMemory)
	f.pod[10], f.pod[11] = float32(s.deviationCPU), float32(s.deviationMemory)
	f.pod[12] = float32(float64(v.feasible) / float64(max(v.nodes, 1)))
	f.pod[13] = float32(math.Log1p(float64(v.pod.queue)) / 5)
}

// rank writes where each value lies between the least (0) and the greatest (1) into a column of the pairs.
func rank(values []float64, pairs []float32, column int) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, value := range values {
		low, high = min(low, value), max(high, value)
	}
	if span := high - low; span > 0 {
		for i, value := range values {
			pairs[i*pairWidth+column] = float32(min(max((value-low)/span, 0), 1))
		}
	}
}

func one(is bool) float32 {
	if is {
		return 1
	}
	return 0
}

func abs32(value float32) float32 { return float32(math.Abs(float64(value))) }

func bounded(value float64) float32 { return float32(min(max(value, -far), far)) }
