package aaml

import (
	"fmt"
	"math"
	"regexp"

	v1 "k8s.io/api/core/v1"
)

const (
	edges     = 52
	bands     = edges - 1
	priorRuns = 1
	unknownS  = 600
	classes   = 4096 // beyond so many, pods of an owner that is new count as what they ask for
)

var (
	// edgesS are the edges of the bands of age, in seconds: 0, then half an octave each, up to 388 days.
	edgesS = func() (e [edges]float64) {
		for i := 1; i < edges; i++ {
			e[i] = math.Exp2(float64(i-1) / 2)
		}
		return e
	}()
	longestS  = edgesS[bands]
	horizonsS = [3]float64{60, 600, 3600}
	generated = map[string]*regexp.Regexp{
		"ReplicaSet": regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{8,10}$`), // the hash of the pod template
		"Job":        regexp.MustCompile(`-\d{8,10}$`),                            // the minute for which a CronJob made it
	}
)

// lifetimes is the life table of aaml.scheduling.lifetimes: how long pods run, by class of pod, and of one that has run for
// a while, for how long it will. It goes on learning.
type lifetimes struct {
	rows    map[string]int32
	parents []int32
	ends    [][bands]float64
	passed  [][bands]float64

	stale     bool
	ending    [][bands]float64 // of the runs that reach a band, the share that ends in it
	alive     [][edges]float64 // logarithm of the share of all runs that reach an edge
	remaining [][edges]float64 // mean rest of those that reach it
}

// lifetimesFile is what LifetimeModel.to_dict writes.
type lifetimesFile struct {
	Classes []struct {
		Key    string       `json:"key"`
		Around int32        `json:"around"`
		Bands  [][3]float64 `json:"bands"`
	} `json:"classes"`
}

func newLifetimes(file *lifetimesFile) (*lifetimes, error) {
	l := &lifetimes{rows: map[string]int32{}, stale: true}
	for at, each := range file.Classes {
		if each.Around < -1 || each.Around >= max(int32(at), 0) || (each.Around == -1) != (at == 0) {
			return nil, fmt.Errorf("lifetimes: class %q lies in class %d, which does not stand before it", each.Key, each.Around)
		}
		row := l.row(each.Key, each.Around)
		for _, band := range each.Bands {
			k := int(band[0])
			if k < 0 || k >= bands {
				return nil, fmt.Errorf("lifetimes: class %q has a band %d; expected 0 to %d", each.Key, k, bands-1)
			}
			l.ends[row][k], l.passed[row][k] = band[1], band[2]
		}
	}
	if len(l.parents) == 0 {
		return nil, fmt.Errorf("lifetimes: there are no classes")
	}
	l.solve()
	return l, nil
}

// row returns the row of a class, a new one where there is room; else the row around it.
func (l *lifetimes) row(key string, parent int32) int32 {
	row, ok := l.rows[key]
	if ok {
		return row
	}
	row = int32(len(l.parents))
	if row >= classes {
		return parent
	}
	l.rows[key] = row
	l.parents = append(l.parents, parent)
	l.ends, l.passed = append(l.ends, [bands]float64{}), append(l.passed, [bands]float64{})
	return row
}

// classesOf returns the keys of a pod's classes, the widest first.
func classesOf(pod *v1.Pod, asked *request) []string {
	kind, name := asked.owner.kind, asked.owner.name
	group := kind + ":" + string(pod.Status.QOSClass)
	shape := fmt.Sprintf("%s|%d|%d|%dx%d", group, asked.cpu, asked.memory, asked.gpu.count, asked.gpu.milli)
	if name == "" {
		return []string{"", group, shape}
	}
	if ending := generated[kind]; ending != nil {
		name = ending.ReplaceAllString(name, "")
	}
	namespace := pod.Namespace
	if namespace == "" {
		namespace = "default"
	}
	return []string{"", group, shape, namespace + "/" + kind + "/" + name}
}

// class returns the row of the narrowest class that something is known of.
func (l *lifetimes) class(keys []string) int32 {
	for i := len(keys) - 1; i > 0; i-- {
		if row, ok := l.rows[keys[i]]; ok {
			return row
		}
	}
	return 0
}

// learn takes one run, watched from the age fromS to the age toS; ended says that it was over then. A pod that was ended by
// its own deadline would have run on: that is no end of its own.
func (l *lifetimes) learn(keys []string, limitS, fromS, toS float64, ended bool) {
	if toS >= limitS {
		toS, ended = limitS, false
	}
	if toS < fromS {
		return
	}
	row := int32(-1)
	for _, key := range keys {
		row = l.row(key, row)
		last := band(toS)
		for k := band(fromS); k <= last; k++ {
			if ended && k == last {
				l.ends[row][k]++
			} else {
				upper := min(toS, edgesS[k+1])
				l.passed[row][k] += max(upper-max(fromS, edgesS[k]), 0) / (edgesS[k+1] - edgesS[k])
			}
		}
	}
	l.stale = true
}

// solve brings the table up to date with what was learned; the class around one stands before it.
func (l *lifetimes) solve() {
	if !l.stale {
		return
	}
	l.stale = false
	for len(l.ending) < len(l.parents) {
		l.ending, l.alive = append(l.ending, [bands]float64{}), append(l.alive, [edges]float64{})
		l.remaining = append(l.remaining, [edges]float64{})
	}
	for c := range l.parents {
		for k := range bands {
			around := (edgesS[k+1] - edgesS[k]) / (unknownS + edgesS[k+1])
			if l.parents[c] >= 0 {
				around = l.ending[l.parents[c]][k]
			}
			ending := (l.ends[c][k] + priorRuns*around) / (l.ends[c][k] + l.passed[c][k] + priorRuns)
			l.ending[c][k] = ending
			l.alive[c][k+1] = l.alive[c][k] + math.Log1p(-ending)
		}
		l.remaining[c][bands] = longestS
		for k := bands - 1; k >= 0; k-- {
			ending, width := l.ending[c][k], edgesS[k+1]-edgesS[k]
			l.remaining[c][k] = width*(1-0.5*ending) + (1-ending)*l.remaining[c][k+1]
		}
	}
}

// band returns the band that an age lies in; the last one for what is older than all.
func band(ageS float64) int {
	if ageS < 1 {
		return 0
	}
	return min(1+int(2*math.Log2(ageS)), bands-1)
}

// aliveAt returns the logarithm of the share of runs that reach an age.
func (l *lifetimes) aliveAt(row int32, ageS float64) float64 {
	k := band(ageS)
	part := min((ageS-edgesS[k])/(edgesS[k+1]-edgesS[k]), 1)
	return l.alive[row][k] + math.Log1p(-l.ending[row][k]*part)
}

// survival returns the probability that a pod of a class still runs after so many seconds.
func (l *lifetimes) survival(row int32, ageS, afterS, limitS float64) float64 {
	if ageS+afterS >= limitS {
		return 0
	}
	return math.Exp(l.aliveAt(row, ageS+afterS) - l.aliveAt(row, ageS))
}

func (l *lifetimes) unlimited(row int32, ageS float64) float64 {
	k := band(ageS)
	width, ending := edgesS[k+1]-edgesS[k], l.ending[row][k]
	part := min((ageS-edgesS[k])/width, 1)
	here, there := 1-ending*part, 1-ending
	return (0.5*width*(1-part)*(here+there) + there*l.remaining[row][k+1]) / here
}

// rest returns for how long a pod of a class and an age is expected to run on, which does not run beyond limitS.
func (l *lifetimes) rest(row int32, ageS, limitS float64) float64 {
	if ageS >= limitS {
		return 0
	}
	restS := l.unlimited(row, ageS)
	if limitS < longestS {
		restS -= l.survival(row, ageS, limitS-ageS, math.Inf(1)) * l.unlimited(row, limitS)
	}
	return min(max(restS, 0), longestS)
}

// restAt returns after how long only this share of the runs of an age still goes on.
func (l *lifetimes) restAt(row int32, ageS, share float64) float64 {
	goal := l.aliveAt(row, ageS) + math.Log(share)
	k := band(ageS)
	for k < bands && l.alive[row][k+1] > goal {
		k++
	}
	if k == bands {
		return longestS
	}
	part := (1 - math.Exp(goal-l.alive[row][k])) / l.ending[row][k]
	return edgesS[k] + part*(edgesS[k+1]-edgesS[k]) - ageS
}

// certainty returns how sure a new pod's rest is: its lower quartile over its upper one.
func (l *lifetimes) certainty(row int32, limitS float64) float64 {
	if limitS <= 0 {
		return 1
	}
	return min(l.restAt(row, 0, 0.75), limitS) / min(l.restAt(row, 0, 0.25), limitS)
}

// logMinutes returns log(1 + minutes) / 5, of about unit size for what lasts from a minute to a day.
func logMinutes(seconds float64) float64 { return 0.2 * math.Log1p(seconds/60) }

// limitOf returns the age beyond which a pod is known not to run.
func limitOf(pod *v1.Pod) float64 {
	if limit := pod.Spec.ActiveDeadlineSeconds; limit != nil {
		return float64(*limit)
	}
	return math.Inf(1)
}
