package aaml

import (
	"fmt"
	"math"
)

// The features and terms of aaml.policies.heuristics.linear, in its order.
var (
	linearFeatures = []string{
		"cpu", "memory", "cpu_squared", "memory_squared", "cpu_memory", "pods", "empty", "imbalance", "fullest", "cpu_full",
		"memory_full", "device_left", "gpu_free_after", "fragmentation_growth", "fragmentation_rank", "extends", "opens",
		"outlived", "stays",
	}
	linearTerms = []string{"one", "pod_cpu", "pod_memory", "pod_rest"}
)

const (
	linearWidth = 19
	termScale   = 5 // a pod asks for about a fifth of a node at most: this brings the terms to unit size
)

// linear is a score that is the sum over terms and features of weight x term x feature, in float64 as in Python.
type linear struct {
	weights [4][linearWidth]float64
	features
}

func newLinear(terms, features []string, weights [][]float64) (*linear, error) {
	l := &linear{}
	if !equal(terms, linearTerms) || !equal(features, linearFeatures) || len(weights) != len(linearTerms) {
		return nil, fmt.Errorf("a linear scorer of other features or terms")
	}
	for t, row := range weights {
		if len(row) != linearWidth {
			return nil, fmt.Errorf("linear weights of %s: %d numbers; expected %d", terms[t], len(row), linearWidth)
		}
		copy(l.weights[t][:], row)
	}
	return l, nil
}

// scores writes the score of each choice of a view.
func (l *linear) scores(v *view, scores []float64) {
	s := v.measure()
	podCPU, podMemory := float64(v.pod.cpu)/s.nodeCPU, float64(v.pod.memory)/s.nodeMemory
	rest := logMinutes(v.pod.restS)
	var w [linearWidth]float64
	for f := range w {
		w[f] = l.weights[0][f] + termScale*(podCPU*l.weights[1][f]+podMemory*l.weights[2][f]) + rest*l.weights[3][f]
	}
	gpus := v.pod.gpu.count > 0
	if gpus {
		l.fill(v)
	}
	for i, kind := range v.kindOf {
		k := v.kinds[kind]
		cpu := float64(k.usedCPU+v.pod.cpu) / atLeast1(k.cpu)
		memory := float64(k.usedMemory+v.pod.memory) / atLeast1(k.memory)
		score := w[0]*cpu + w[1]*memory + w[2]*cpu*cpu + w[3]*memory*memory + w[4]*cpu*memory
		score += w[5] * math.Log1p(float64(k.usedPods))
		if k.usedPods == 0 {
			score += w[6]
		}
		score += w[7]*math.Abs(cpu-memory) + w[8]*max(cpu, memory)
		if cpu > full {
			score += w[9]
		}
		if memory > full {
			score += w[10]
		}
		if v.table != nil {
			emptyS := k.life.emptyS(v.table, v.nowS)
			extends, outlived := logMinutes(max(v.pod.restS-emptyS, 0)), logMinutes(max(emptyS-v.pod.restS, 0))
			if k.usedPods == 0 {
				score += w[16] * extends
			} else {
				score += w[15] * extends
			}
			score += w[17]*outlived + w[18]*logMinutes(emptyS)
		}
		if gpus {
			for f, column := range [4]int{10, 11, 13, 15} {
				score += w[11+f] * float64(l.pairs[i*pairWidth+column])
			}
		}
		scores[i] = score
	}
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
