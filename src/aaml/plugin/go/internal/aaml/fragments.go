package aaml

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
)

// expectedFile is what a weights file says of the pods that are expected: the typical ones, of so many in all.
type expectedFile struct {
	Population int64        `json:"population"`
	Kinds      []typicalPod `json:"kinds"`
}

// typicalPod is a kind of pod, and how many of its kind there are.
type typicalPod struct {
	CPU       int64    `json:"cpu_milli"`
	Milli     int64    `json:"gpu_milli"`
	Count     int64    `json:"gpu_count"`
	Models    []string `json:"models"` // none: any will do
	Frequency int64    `json:"frequency"`
}

// fragments says how much of a node's free GPU capacity the expected pods can use: Weng et al., USENIX ATC 2023, as
// aaml.policies.fragmentation counts it, in whole numbers.
type fragments struct {
	kinds  []typicalPod
	column []int // of each kind in milli, -1 where it asks for no GPU
	cpu    []int64
	milli  []int64 // distinct demands, ascending
	weight []float64
	total  int64 // pods that the typical ones stand for, 1 at least
	asked  int64 // thousandths of a GPU that they ask for together, 1 at least
	serves map[string][]bool

	before, after measured
}

// measured is the capacity, and the number, of the devices of a node that can take each demand.
type measured struct{ sums, counts []int64 }

func newFragments(file *expectedFile) (*fragments, error) {
	f := &fragments{kinds: file.Kinds, serves: map[string][]bool{}}
	for i, kind := range f.kinds {
		if kind.CPU < 0 || kind.Milli < 0 || kind.Milli > deviceMilli || kind.Count < 0 || kind.Count > mostDevices+1 || kind.Frequency < 1 {
			return nil, fmt.Errorf("expected pods of kind %d ask for amounts that are none", i)
		}
		f.cpu = append(f.cpu, kind.CPU)
		if kind.Milli > 0 {
			f.milli = append(f.milli, kind.Milli)
		}
		f.total += kind.Frequency
		f.asked += kind.Frequency * kind.Milli * kind.Count
	}
	slices.Sort(f.cpu)
	slices.Sort(f.milli)
	f.cpu, f.milli = slices.Compact(f.cpu), slices.Compact(f.milli)
	population := float64(max(file.Population, f.total, 1))
	for _, kind := range f.kinds {
		at := -1
		if kind.Milli > 0 {
			at, _ = slices.BinarySearch(f.milli, kind.Milli)
		}
		f.column = append(f.column, at)
		f.weight = append(f.weight, float64(kind.Frequency)/population/(float64(f.total)/population))
	}
	f.total, f.asked = max(f.total, 1), max(f.asked, 1)
	m := len(f.milli)
	f.before = measured{make([]int64, m), make([]int64, m)}
	f.after = measured{make([]int64, m), make([]int64, m)}
	return f, nil
}

// takes says which of the typical pods may have devices of a model.
func (f *fragments) takes(model string) []bool {
	serves, ok := f.serves[model]
	if !ok {
		serves = make([]bool, len(f.kinds))
		for i, kind := range f.kinds {
			serves[i] = len(kind.Models) == 0 || slices.Contains(kind.Models, model)
		}
		f.serves[strings.Clone(model)] = serves
	}
	return serves
}

// class returns how many of the distinct CPU demands fit.
func (f *fragments) class(cpu int64) int {
	return sort.Search(len(f.cpu), func(i int) bool { return f.cpu[i] > cpu })
}

// measure looks at a node's devices.
func (f *fragments) measure(k *facts) {
	for column, need := range f.milli {
		sum, count := int64(0), int64(0)
		for g := range k.deviceCount() {
			if free := k.device(g); free >= need {
				sum += free
				count++
			}
		}
		f.before.sums[column], f.before.counts[column] = sum, count
	}
}

// takeShare measures the same node after one device goes from `free` to `free - taken`.
func (f *fragments) takeShare(free, taken int64) {
	for column, need := range f.milli {
		sum, count := f.before.sums[column], f.before.counts[column]
		if free >= need {
			if free-taken >= need {
				sum -= taken
			} else {
				sum -= free
				count--
			}
		}
		f.after.sums[column], f.after.counts[column] = sum, count
	}
}

// takeWhole measures the same node after so many fully free devices are taken.
func (f *fragments) takeWhole(devices int64) {
	for column := range f.milli {
		f.after.sums[column] = f.before.sums[column] - deviceMilli*devices
		f.after.counts[column] = f.before.counts[column] - devices
	}
}

// usable returns the capacity that typical pods can use, times how many they are.
func (f *fragments) usable(m *measured, serves []bool, cpu int64) int64 {
	amount := int64(0)
	for i := range f.kinds {
		if f.fits(m, serves, cpu, i) {
			amount += f.kinds[i].Frequency * m.sums[f.column[i]]
		}
	}
	return amount
}

// placeable returns how much GPU, in thousandths, those typical pods ask for of which one fits.
func (f *fragments) placeable(m *measured, serves []bool, cpu int64) int64 {
	amount := int64(0)
	for i := range f.kinds {
		if f.fits(m, serves, cpu, i) {
			amount += f.kinds[i].Frequency * f.kinds[i].Count * f.kinds[i].Milli
		}
	}
	return amount
}

func (f *fragments) fits(m *measured, serves []bool, cpu int64, i int) bool {
	kind, column := &f.kinds[i], f.column[i]
	return column >= 0 && serves[i] && cpu >= kind.CPU && m.counts[column] >= kind.Count
}

// gradient returns FGD's score of a pod on a node where it fits, 0 to 100: the less fragments it leaves the higher; and the
// first of the best devices for a share, -1 for other pods.
func (f *fragments) gradient(k *facts, pod *request) (score float64, device int) {
	free, milli := k.cpu-k.usedCPU, pod.gpu.milli
	if milli <= 0 && f.class(free) == f.class(free-pod.cpu) {
		return 50, -1
	}
	serves := f.takes(k.model)
	f.measure(k)
	before := f.usable(&f.before, serves, free)
	if !pod.gpu.share() {
		taken := int64(0)
		if milli > 0 {
			taken = pod.gpu.count
		}
		f.takeWhole(taken)
		gained := f.total*deviceMilli*taken + f.usable(&f.after, serves, free-pod.cpu) - before
		return logisticScore(float64(gained) / float64(f.total)), -1
	}
	score, device = -1, -1
	for g := range k.deviceCount() {
		if k.device(g) < milli || k.repeated(g) {
			continue
		}
		f.takeShare(k.device(g), milli)
		gained := f.total*milli + f.usable(&f.after, serves, free-pod.cpu) - before
		if on := logisticScore(float64(gained) / float64(f.total)); on > score {
			score, device = on, g
		}
	}
	return score, device
}

// growth returns by how much a node's fragments grow with a pod, in thousandths of a GPU, 0 where it does not fit.
func (f *fragments) growth(k *facts, pod *request) float64 {
	if !k.room(pod) {
		return 0
	}
	score, _ := f.gradient(k, pod)
	share := min(max(score/100, 1e-12), 1-1e-12)
	return 1000 * math.Log(1/share-1) // the score is 100 / (1 + exp(growth / 1000))
}
