package aaml

import (
	"fmt"
	"math"
	"slices"
)

// The features of a pod on a node and device, and what a network sees of the pod besides: aaml.policies.gpu.features.
var (
	deviceFeatures = []string{
		"fragment_gain", "fgd", "cpu_left", "gpu_left", "cpu_fraction", "gpu_fraction", "imbalance", "dot", "whole_left",
		"whole_opened", "device_left", "device_full", "unused", "exhausted", "usable", "stranded_cpu", "cpu_per_gpu",
		"cpu_class", "same_kind", "other_kind", "model_demand", "model_access", "gpu_count", "waste", "placeable",
		"placeable_lost", "intact_lost", "room_lost", "rest_lost", "model_load",
	}
	deviceInputs = []string{"no_gpu", "share", "one_gpu", "several_gpus", "named_models", "cpu", "gpu", "share_milli"}
)

const (
	phiWidth, inputWidth, groups = 30, 8, 5
	namedGroup                   = 4
)

// scarce is what the expected pods ask of a model of devices: shares of their demand that name it and that it may serve,
// and how much falls on each of its devices, were pods spread evenly: 1 is the mean over all devices.
type scarce struct{ named, served, load float64 }

// learned is a scorer of devices: linear by group of pods, or a small network, or a formula.
type learned struct {
	*fragments
	linear [][]float64 // [groups, phiWidth], nil where something else scores
	layers []dense64   // of a network
	rule   *deviceRule // a formula
	rests  []float64   // [1001] what so many free thousandths of a device are worth to the expected shares, in devices
	models map[string]scarce
	phi    [phiWidth + inputWidth]float64
}

// dense64 is a layer in float64, as Python computes scorers of devices.
type dense64 struct {
	Weights [][]float64 `json:"weights"` // [out, in]
	Biases  []float64   `json:"biases"`
}

// deviceRule is a formula of phi: registers hold the features that it reads, then the constants, then what each
// instruction gives. The last one is the score.
type deviceRule struct {
	reads     []int // columns of phi
	code      []instruction
	registers []float64
}

func newDeviceRule(reads []string, constants []float64, code []instruction) (*deviceRule, error) {
	r := &deviceRule{code: code, registers: make([]float64, len(reads)+len(constants)+len(code))}
	for _, name := range reads {
		at := slices.IndexFunc(deviceFeatures, func(each string) bool { return "gpu."+each == name })
		if at < 0 {
			at = slices.IndexFunc(deviceInputs, func(each string) bool { return "gpu_pod."+each == name })
			if at < 0 {
				return nil, fmt.Errorf("a formula that reads %q, which this plugin does not compute", name)
			}
			at += phiWidth
		}
		r.reads = append(r.reads, at)
	}
	copy(r.registers[len(reads):], constants)
	return r, ready(code, len(reads)+len(constants))
}

func (r *deviceRule) value(phi []float64) float64 {
	for i, at := range r.reads {
		r.registers[i] = phi[at]
	}
	first := len(r.registers) - len(r.code)
	for k, each := range r.code {
		a, b, c := r.registers[each.Operands[0]], r.registers[each.Operands[1]], r.registers[each.Operands[2]]
		r.registers[first+k] = each.apply(a, b, c)
	}
	return r.registers[len(r.registers)-1]
}

func newLearned(p *policyFile, expected *fragments) (*learned, error) {
	l := &learned{fragments: expected, linear: p.Weights, layers: p.DeviceLayers, rests: p.Rests, models: map[string]scarce{}}
	reads := deviceFeatures
	if len(l.layers) > 0 || len(p.Features.Formula) > 0 {
		reads = append(append([]string(nil), deviceFeatures...), deviceInputs...)
	}
	if !equal(p.Features.Devices, reads) {
		return nil, fmt.Errorf("reads other features of devices than this plugin computes")
	}
	if len(l.rests) != deviceMilli+1 {
		return nil, fmt.Errorf("tells what %d rests of a device are worth; expected %d", len(l.rests), deviceMilli+1)
	}
	if len(p.Features.Formula) > 0 {
		var err error
		l.rule, err = newDeviceRule(p.Features.Formula, p.Constants, p.Code)
		return l, err
	}
	if len(l.layers) == 0 {
		if len(l.linear) != groups {
			return nil, fmt.Errorf("weights for %d groups of pods; expected %d", len(l.linear), groups)
		}
		for _, row := range l.linear {
			if len(row) != phiWidth {
				return nil, fmt.Errorf("weights of %d features of devices; expected %d", len(row), phiWidth)
			}
		}
		return l, nil
	}
	in := phiWidth + inputWidth
	for i, layer := range l.layers {
		if len(layer.Weights) != len(layer.Biases) || len(layer.Weights) == 0 {
			return nil, fmt.Errorf("layer %d: %d rows of weights and %d biases", i, len(layer.Weights), len(layer.Biases))
		}
		for _, row := range layer.Weights {
			if len(row) != in {
				return nil, fmt.Errorf("layer %d: %d weights; expected %d", i, len(row), in)
			}
		}
		in = len(layer.Biases)
	}
	if in != 1 {
		return nil, fmt.Errorf("%d outputs; expected 1", in)
	}
	return l, nil
}

// look works out what is scarce on a cluster.
func (l *learned) look(v *view) {
	count, all := map[string]float64{}, 0.0
	for i, k := range v.kinds {
		devices := v.count[i] * float64(k.deviceCount())
		count[k.model] += devices
		all += devices
	}
	clear(l.models)
	total := 0.0
	for i, kind := range l.kinds {
		demand := l.weight[i] * float64(kind.Milli) * float64(kind.Count)
		total += demand
		serving := 0.0
		for model, devices := range count {
			if l.takes(model)[i] {
				serving += devices
			}
		}
		each := demand / max(serving, 1)
		for model := range count {
			if !l.takes(model)[i] {
				continue
			}
			s := l.models[model]
			if len(kind.Models) > 0 {
				s.named += demand
			}
			s.served += demand
			s.load += each * all
			l.models[model] = s
		}
	}
	total = max(total, 1e-9)
	for model, s := range l.models {
		l.models[model] = scarce{s.named / total, s.served / total, s.load / total}
	}
}

// score returns the best score of a pod on a node where it fits, and a share's device, of equal ones the first.
func (l *learned) score(k *facts, pod *request) (score float64, device int) {
	l.measure(k)
	if l.linear == nil {
		l.fillInputs(pod)
	}
	if !pod.gpu.share() {
		l.fill(k, pod, -1)
		return l.value(pod), -1
	}
	score, device = math.Inf(-1), -1
	for g := range k.deviceCount() {
		if k.device(g) < pod.gpu.milli || k.repeated(g) {
			continue
		}
		l.fill(k, pod, g)
		if on := l.value(pod); on > score || device < 0 {
			score, device = on, g
		}
	}
	return score, device
}

// fill writes the features of a pod on a measured node and, for a share, on a device.
func (l *learned) fill(k *facts, pod *request, device int) {
	milli, count := pod.gpu.milli, int64(k.deviceCount())
	asked, free := pod.gpu.count*milli, k.free()
	before, cpu, left := k.cpu-k.usedCPU, k.cpu-k.usedCPU-pod.cpu, free-asked
	whole, partial := int64(0), int64(0)
	for g := range k.deviceCount() {
		if amount := k.device(g); amount >= deviceMilli {
			whole++
		} else {
			partial += amount
		}
	}
	serves := l.takes(k.model)
	usedBefore, fitsBefore := l.usable(&l.before, serves, before), l.placeable(&l.before, serves, before)
	opened, on := int64(0), int64(0)
	if device >= 0 {
		on = k.device(device)
		l.takeShare(on, milli)
		if on >= deviceMilli {
			opened = 1
			partial += on
		}
		partial -= milli
	} else {
		if milli > 0 {
			opened = pod.gpu.count
		}
		l.takeWhole(opened)
	}
	after, fitsAfter := l.usable(&l.after, serves, cpu), l.placeable(&l.after, serves, cpu)
	gain := float64(asked) + float64(after-usedBefore)/float64(l.total)
	same := uint64(1) << pod.gpu.kind()
	phi := l.phi[:phiWidth]
	clear(phi)
	phi[0], phi[1] = gain/deviceMilli, logisticScore(gain)/100
	phi[2], phi[3] = float64(cpu)/largestCPU, float64(left)/largestGPU
	phi[4] = float64(cpu) / atLeast1(k.cpu)
	if count > 0 {
		phi[5] = float64(left) / float64(deviceMilli*count)
	}
	phi[6] = math.Abs(phi[4] - phi[5])
	phi[7] = (float64(before)/largestCPU)*(float64(pod.cpu)/largestCPU) + (float64(free)/largestGPU)*(float64(asked)/largestGPU)
	phi[8], phi[9] = float64(whole-opened)/8, float64(opened)/8
	if device >= 0 {
		phi[10], phi[11] = float64(on-milli)/deviceMilli, truth(on == milli)
		phi[28] = l.rests[on] - l.rests[on-milli]
	}
	phi[12], phi[13] = truth(k.podKinds == 0), truth(count > 0 && left == 0)
	phi[14] = float64(after) / float64(l.total) / largestGPU
	if left == 0 {
		phi[15] = phi[2]
	}
	phi[16] = min(float64(cpu)/atLeast1(left)/16, 2)
	phi[17] = float64(l.class(cpu)) / atLeast1(int64(len(l.cpu)))
	phi[18], phi[19] = truth(k.podKinds&same != 0), truth(k.podKinds&^same != 0)
	scarce := l.models[k.model]
	phi[20], phi[21], phi[29] = scarce.named, scarce.served, scarce.load-1
	phi[22], phi[23] = float64(count)/8, float64(partial)/largestGPU
	phi[24], phi[25] = float64(fitsAfter)/float64(l.asked), float64(fitsBefore-fitsAfter)/float64(l.asked)
	cores := float64(before) / largestCPU
	if whole == count {
		phi[26] = float64(count) / 8 * cores
		if opened == 0 {
			phi[26] -= float64(count) / 8 * phi[2]
		}
	}
	phi[27] = float64(whole)/8*(float64(whole)/8)*cores - phi[8]*phi[8]*phi[2]
}

// fillInputs writes what a network sees of the pod.
func (l *learned) fillInputs(pod *request) {
	inputs := l.phi[phiWidth:]
	clear(inputs)
	inputs[pod.gpu.group()] = 1
	inputs[namedGroup] = truth(pod.gpu.models && pod.gpu.milli > 0)
	inputs[5] = float64(pod.cpu) / 32_000
	inputs[6] = float64(pod.gpu.count*pod.gpu.milli) / largestGPU
	if pod.gpu.share() {
		inputs[7] = float64(pod.gpu.milli) / deviceMilli
	}
}

func (l *learned) value(pod *request) float64 {
	if l.rule != nil {
		return l.rule.value(l.phi[:])
	}
	if len(l.layers) == 0 {
		group, named := l.linear[pod.gpu.group()], pod.gpu.models && pod.gpu.milli > 0
		value := 0.0
		for i, feature := range l.phi[:phiWidth] {
			weight := group[i]
			if named {
				weight += l.linear[namedGroup][i]
			}
			value += weight * feature
		}
		return value
	}
	values := l.phi[:]
	for i, layer := range l.layers {
		next := append([]float64(nil), layer.Biases...)
		for unit, row := range layer.Weights {
			for in, weight := range row {
				if i == 0 || values[in] > 0 { // ReLU of the layer before
					next[unit] += values[in] * weight
				}
			}
		}
		values = next
	}
	return values[0]
}
