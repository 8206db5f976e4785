package aaml

import "math"

// FeaturesVersion rises when a feature is computed in another way. New features only join the end of the lists.
const FeaturesVersion = 1

const (
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
			f.seen[i].emptyS = fillExpected(row, v, k)
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
	for t, column := range [rankTerms]int{pairCPUAfterRank, pairMemoryAfterRank, pairVarianceRank, pairFreeAfterRank, pairFragmentationRank} {
		rank(f.terms[t*n:(t+1)*n], f.pairs, column)
	}
	f.fillPod(v, &s)
}

func (f *features) fillNode(row []float32, out *seen, k *facts, s *size) {
	_ = row[nodeWidth-1]
	cpu, memory := float64(k.usedCPU)/atLeast1(k.cpu), float64(k.usedMemory)/atLeast1(k.memory)
	out.cpu, out.memory, out.gapCPU, out.gapMemory = cpu, memory, cpu-s.meanCPU, memory-s.meanMemory
	row[nodeCPUUsed], row[nodeMemoryUsed] = float32(cpu), float32(memory)
	row[nodePodsUsed] = float32(float64(k.usedPods) / atLeast1(k.pods))
	row[nodeCPUUsedMinusMean], row[nodeMemoryUsedMinusMean] = float32(out.gapCPU), float32(out.gapMemory)
	row[nodeCPUSize], row[nodeMemorySize] = float32(float64(k.cpu)/s.maxCPU), float32(float64(k.memory)/s.maxMemory)
	row[nodeCPUMemoryImbalance] = float32(math.Abs(cpu - memory))
	row[nodeEmpty] = one(k.usedPods == 0)
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
	row[nodeGPUFree], row[nodeLargestFreeDevice] = 0, 0
	if devices > 0 {
		row[nodeGPUFree], row[nodeLargestFreeDevice] = float32(free/(1000*float64(devices))), float32(largest/1000)
	}
	row[nodeWholeFreeDevices], row[nodeSharedDevices], row[nodeGPUCount] = float32(whole/8), float32(shared/8), float32(float64(devices)/8)
	row[nodeCordoned], row[nodeCapacity] = one(k.cordoned), one(k.capacity)
	clear(row[nodeCPUIn1m:])
	out.emptyS = 0
}

// fillExpected writes what the pods on a node are expected to leave, and returns in how many seconds it is empty.
func fillExpected(row []float32, v *view, k *facts) float64 {
	load, emptyS := k.life.expected(v.table, v.nowS)
	for h := range load {
		row[nodeCPUIn1m+3*h] = float32(float64(load[h][0]) / atLeast1(k.cpu))
		row[nodeMemoryIn1m+3*h] = float32(float64(load[h][1]) / atLeast1(k.memory))
		row[nodeGPUIn1m+3*h] = float32(float64(load[h][2]) / (1000 * atLeast1(int64(len(k.devices)/2))))
	}
	row[nodeEmptyIn] = float32(logMinutes(emptyS))
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
	row[pairFeasible] = 1
	row[pairCPUAfter], row[pairMemoryAfter] = float32(min(afterCPU, 2)), float32(min(afterMemory, 2))
	// As in Python, these go on from what was kept as float32.
	row[pairCPUAfterMinusMean], row[pairMemoryAfterMinusMean] = float32(float64(row[pairCPUAfter])-p.meanCPU), float32(float64(row[pairMemoryAfter])-p.meanMemory)
	row[pairImbalanceAfter] = abs32(row[pairCPUAfter] - row[pairMemoryAfter])
	row[pairCPUAfterRank], row[pairMemoryAfterRank], row[pairVarianceRank], row[pairFreeAfterRank], row[pairDeviceLeft] = 0, 0, 0, 0, 0
	if devices := len(k.devices) / 2; p.gpu.milli > 0 && devices > 0 {
		best := 2000.0
		for g := range devices {
			if amount := k.device(g); amount >= p.gpu.milli {
				best = min(best, float64(amount))
			}
		}
		if p.gpu.count == 1 && best <= 1000 {
			row[pairDeviceLeft] = float32((best - float64(p.gpu.milli)) / 1000)
		}
		row[pairGPUFreeAfter] = float32(max(on.gpuFree-float64(p.gpu.count*p.gpu.milli), 0) / (1000 * float64(devices)))
	} else if devices > 0 {
		row[pairGPUFreeAfter] = float32(on.gpuFree / (1000 * float64(devices)))
	} else {
		row[pairGPUFreeAfter] = 0
	}
	row[pairSiblings] = float32(siblings / 8)
	row[pairFragmentationGrowth], row[pairFragmentationRank] = float32(on.growth/1000), 0
	row[pairNewlyUsed] = one(k.usedPods == 0)
	row[pairCPUVarianceGrowth], row[pairMemoryVarianceGrowth] = float32(40*growCPU*on.gapCPU), float32(40*growMemory*on.gapMemory)
	row[pairCPUGapAfter], row[pairMemoryGapAfter] = float32(8*float64(row[pairCPUAfterMinusMean])), float32(8*float64(row[pairMemoryAfterMinusMean]))
	row[pairCPUGap], row[pairMemoryGap] = float32(8*float64(float32(on.gapCPU))), float32(8*float64(float32(on.gapMemory)))
	row[pairExtends], row[pairOutlived] = 0, 0
	if p.expects {
		row[pairExtends], row[pairOutlived] = float32(logMinutes(max(p.restS-on.emptyS, 0))), float32(logMinutes(max(on.emptyS-p.restS, 0)))
	}
	row[pairCPUGrowthScaled], row[pairMemoryGrowthScaled], row[pairCPUGapScaled], row[pairMemoryGapScaled] = 0, 0, 0, 0
	if k.capacity {
		row[pairCPUGrowthScaled] = bounded(growCPU * (2*on.gapCPU + growCPU*p.keep) / p.unit)
		row[pairMemoryGrowthScaled] = bounded(growMemory * (2*on.gapMemory + growMemory*p.keep) / p.unit)
		row[pairCPUGapScaled] = bounded(on.gapCPU / (p.deviationCPU + p.sizeCPU))
		row[pairMemoryGapScaled] = bounded(on.gapMemory / (p.deviationMemory + p.sizeMemory))
	}
	if k.usedPods < int64(len(logPods)) {
		row[pairPods] = float32(logPods[k.usedPods])
	} else {
		row[pairPods] = float32(math.Log1p(float64(k.usedPods)) / 3)
	}
	row[pairCPUFullAfter], row[pairMemoryFullAfter] = one(afterCPU > full), one(afterMemory > full)
	return [rankTerms]float64{afterCPU, afterMemory, variance, left, on.growth}
}

func (f *features) fillPod(v *view, s *size) {
	gpu := v.pod.gpu
	f.pod[podCPU], f.pod[podMemory] = float32(float64(v.pod.cpu)/s.nodeCPU), float32(float64(v.pod.memory)/s.nodeMemory)
	f.pod[podGPUShare], f.pod[podGPUCount] = float32(float64(gpu.milli)/1000), float32(float64(gpu.count)/8)
	f.pod[podIsShare] = one(gpu.count == 1 && 0 < gpu.milli && gpu.milli < deviceMilli)
	f.pod[podWantsModel] = one(gpu.models)
	f.pod[podLifetime], f.pod[podLifetimeKnown] = 0, 0
	if v.table != nil {
		f.pod[podLifetime], f.pod[podLifetimeKnown] = float32(math.Log1p(v.pod.restS)/10), float32(v.pod.sure)
	}
	f.pod[podCPUMean], f.pod[podMemoryMean] = float32(s.meanCPU), float32(s.meanMemory)
	f.pod[podCPUSpread], f.pod[podMemorySpread] = float32(s.deviationCPU), float32(s.deviationMemory)
	f.pod[podFeasibleFraction] = float32(float64(v.feasible) / float64(max(v.nodes, 1)))
	f.pod[podQueue] = float32(math.Log1p(float64(v.pod.queue)) / 5)
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
