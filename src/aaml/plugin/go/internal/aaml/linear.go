package aaml

import (
	"fmt"
	"math"
)

const termScale = 5 // a pod asks for about a fifth of a node at most: this brings the terms to unit size

// linear is a score that is the sum over terms and features of weight x term x feature, in float64 as in Python.
type linear struct {
	weights [termWidth][linearWidth]float64
	features
}

func newLinear(terms, features []string, weights [][]float64) (*linear, error) {
	l := &linear{}
	if !equal(terms, termFeatures) || !equal(features, linearFeatures) || len(weights) != len(termFeatures) {
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
		w[f] = l.weights[termOne][f] + termScale*(podCPU*l.weights[termPodCPU][f]+podMemory*l.weights[termPodMemory][f]) + rest*l.weights[termPodRest][f]
	}
	gpus := v.pod.gpu.count > 0
	if gpus {
		l.fill(v)
	}
	for i, kind := range v.kindOf {
		k := v.kinds[kind]
		cpu := float64(k.usedCPU+v.pod.cpu) / atLeast1(k.cpu)
		memory := float64(k.usedMemory+v.pod.memory) / atLeast1(k.memory)
		score := w[linearCPU]*cpu + w[linearMemory]*memory + w[linearCPUSquared]*cpu*cpu + w[linearMemorySquared]*memory*memory + w[linearCPUMemory]*cpu*memory
		score += w[linearPods] * math.Log1p(float64(k.usedPods))
		if k.usedPods == 0 {
			score += w[linearEmpty]
		}
		score += w[linearImbalance]*math.Abs(cpu-memory) + w[linearFullest]*max(cpu, memory)
		if cpu > full {
			score += w[linearCPUFull]
		}
		if memory > full {
			score += w[linearMemoryFull]
		}
		if v.table != nil {
			emptyS := k.life.emptyS(v.table, v.nowS)
			extends, outlived := logMinutes(max(v.pod.restS-emptyS, 0)), logMinutes(max(emptyS-v.pod.restS, 0))
			if k.usedPods == 0 {
				score += w[linearOpens] * extends
			} else {
				score += w[linearExtends] * extends
			}
			score += w[linearOutlived]*outlived + w[linearStays]*logMinutes(emptyS)
		}
		if gpus {
			for f, column := range [4]int{pairDeviceLeft, pairGPUFreeAfter, pairFragmentationGrowth, pairFragmentationRank} {
				score += w[linearDeviceLeft+f] * float64(l.pairs[i*pairWidth+column])
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
