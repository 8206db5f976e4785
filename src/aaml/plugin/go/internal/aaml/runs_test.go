package aaml

import (
	"math"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// clocked returns runs over a table that knows nothing, and the clock that they read.
func clocked(t *testing.T) (*runs, *float64) {
	t.Helper()
	told := &lifetimesFile{}
	if err := strictly([]byte(`{"classes":[{"key":"","around":-1,"bands":[]}]}`), told); err != nil {
		t.Fatal(err)
	}
	table, err := newLifetimes(told)
	if err != nil {
		t.Fatal(err)
	}
	r, nowS := newRuns(table), new(float64)
	r.now = func() float64 { return *nowS }
	return r, nowS
}

func bound(name, node string) *v1.Pod {
	pod := madePod(name, "app", 100, 128)
	pod.Spec.NodeName = node
	return pod
}

func TestOfAPodThatIsUnknownAsMuchRestIsExpectedAsItsAge(t *testing.T) {
	r, _ := clocked(t)
	// The Lomax law of median 600 s: half of the runs of an age of 1,000 s have ended 1,600 s later.
	if got := r.table.survival(0, 1000, 1600, math.Inf(1)); math.Abs(got-0.5) > 0.02 {
		t.Errorf("%v of the runs go on; expected a half", got)
	}
}

func TestAPodThatEndsTeachesItsClasses(t *testing.T) {
	r, nowS := clocked(t)
	r.told(bound("a", "n"))
	*nowS = 100
	r.left("a")
	if !r.learn(*nowS) {
		t.Error("there are no new classes")
	}
	// From 0 on there are 13 bands whole before the one from 90.5 to 128 s, in which it ended.
	last := band(100)
	for _, key := range []string{"", "ReplicaSet:", "ReplicaSet:|100|134217728|0x0", "default/ReplicaSet/app"} {
		row := r.table.rows[key]
		if r.table.ends[row][last] != 1 || r.table.passed[row][last] != 0 || r.table.passed[row][last-1] != 1 {
			t.Errorf("class %q: %v ended, %v passed", key, r.table.ends[row][last], r.table.passed[row][last-1])
		}
	}
	if edgesS[last] > 100 || edgesS[last+1] <= 100 {
		t.Errorf("band %d is from %v to %v", last, edgesS[last], edgesS[last+1])
	}
	if len(r.byUID) != 0 {
		t.Error("a pod that ended is kept")
	}
}

func TestAPodThatRunsOnCountsForTheBandsThatItPassed(t *testing.T) {
	r, nowS := clocked(t)
	r.told(bound("a", "n"))
	*nowS = 3
	r.learn(*nowS)
	// The bands end at 1, 1.41, 2 and 2.83 s.
	for k, want := range []float64{1, 1, 1, 1, 0} {
		if got := r.table.passed[0][k]; math.Abs(got-want) > 1e-12 || r.table.ends[0][k] != 0 {
			t.Errorf("band %d: %v passed, %v ended; expected %v and none", k, got, r.table.ends[0][k], want)
		}
	}
}

func TestAPodWhoseNodeLeftDidNotEndByItself(t *testing.T) {
	r, nowS := clocked(t)
	r.nodes = func(string) bool { return false }
	r.told(bound("a", "n"))
	*nowS = 100
	r.left("a")
	r.learn(*nowS)
	for k := range bands {
		if r.table.ends[0][k] != 0 {
			t.Errorf("an end is counted in band %d", k)
		}
	}
}

func TestAPodThatWasNotBoundAfterAllNeverRan(t *testing.T) {
	r, nowS := clocked(t)
	r.of(podInfo(bound("a", "n")), "n")
	r.told(madePod("a", "app", 100, 128))
	*nowS = 100
	if r.learn(*nowS); len(r.table.rows) != 1 || len(r.byUID) != 0 {
		t.Error("it is counted")
	}
}
