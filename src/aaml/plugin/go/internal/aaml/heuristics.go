package aaml

import (
	"fmt"
	"math"
)

// heuristic is a score of aaml.policies.heuristics.scores by its name. Amounts are those of kube-scheduler's scores, which
// count 100m and 200Mi where nothing is requested.
type heuristic struct {
	score func(h *heuristic, f *facts, pod *request) float64

	meanCPU, meanMemory float64 // use of the nodes that count
	maxCPU, maxMemory   float64 // the largest of them
	keep                float64 // 1 - 1 / nodes that count
}

var heuristics = map[string]func(h *heuristic, f *facts, pod *request) float64{
	"first-fit": func(*heuristic, *facts, *request) float64 { return 0 }, // of equal nodes the first is taken
	"least-allocated": func(_ *heuristic, f *facts, pod *request) float64 {
		return byResource(f, pod, func(size, used, asked float64) float64 { return 50 * max(size-(used+asked), 0) / size })
	},
	"most-allocated": func(_ *heuristic, f *facts, pod *request) float64 {
		return byResource(f, pod, func(size, used, asked float64) float64 { return 50 * min(used+asked, size) / size })
	},
	"balanced-allocation": func(_ *heuristic, f *facts, pod *request) float64 {
		cpu := min(float64(f.scoredCPU+pod.scoredCPU)/atLeast1(f.cpu), 1)
		memory := min(float64(f.scoredMemory+pod.scoredMemory)/atLeast1(f.memory), 1)
		return 100 * (1 - 0.5*math.Abs(cpu-memory))
	},
	// Novikov et al., 2025, https://arxiv.org/abs/2506.13131: -(c + m + m / c + c / m), where the pod asks for c of the
	// node's free CPU and m of its free memory.
	"alphaevolve": func(_ *heuristic, f *facts, pod *request) float64 {
		c := atLeast1(pod.scoredCPU) / atLeast1(max(f.cpu, 1)-f.scoredCPU)
		m := atLeast1(pod.scoredMemory) / atLeast1(max(f.memory, 1)-f.scoredMemory)
		return -(c + m + m/c + c/m)
	},
	// When use of a node at u grows by d, N times the variance grows by 2 d (u - mean) + d^2 (1 - 1/N).
	"least-variance": func(h *heuristic, f *facts, pod *request) float64 {
		growth := func(size, used, asked, mean float64) float64 {
			grow, away := asked/size, used/size-mean
			return 1e4 * (2*grow*away + grow*grow*h.keep)
		}
		score := -growth(atLeast1(f.cpu), float64(f.scoredCPU), float64(pod.scoredCPU), h.meanCPU)
		return score - growth(atLeast1(f.memory), float64(f.scoredMemory), float64(pod.scoredMemory), h.meanMemory)
	},
}

func byResource(f *facts, pod *request, score func(size, used, asked float64) float64) float64 {
	return score(atLeast1(f.cpu), float64(f.scoredCPU), float64(pod.scoredCPU)) +
		score(atLeast1(f.memory), float64(f.scoredMemory), float64(pod.scoredMemory))
}

func newHeuristic(name string) (*heuristic, error) {
	score, ok := heuristics[name]
	if !ok {
		return nil, fmt.Errorf("heuristic %q is not known to this plugin", name)
	}
	return &heuristic{score: score}, nil
}

// scores writes the score of each choice of a view.
func (h *heuristic) scores(v *view, scores []float64) {
	count := 0.0
	h.meanCPU, h.meanMemory, h.maxCPU, h.maxMemory = 0, 0, 1, 1
	for i, k := range v.kinds {
		if k.capacity {
			count += v.count[i]
			h.meanCPU += v.count[i] * (float64(k.scoredCPU) / atLeast1(k.cpu))
			h.meanMemory += v.count[i] * (float64(k.scoredMemory) / atLeast1(k.memory))
			h.maxCPU, h.maxMemory = max(h.maxCPU, float64(k.cpu)), max(h.maxMemory, float64(k.memory))
		}
	}
	count = max(count, 1)
	h.meanCPU, h.meanMemory, h.keep = h.meanCPU/count, h.meanMemory/count, 1-1/count
	for i, kind := range v.kindOf {
		scores[i] = h.score(h, v.kinds[kind], &v.pod)
	}
}
