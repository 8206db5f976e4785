package aaml

import (
	"container/heap"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const learnEveryS = 1 // a life table that has learned is solved again

// run is a pod that runs: since when on the plugin's clock, and up to which age its run has been counted.
type run struct {
	keys           []string
	node           string
	sinceS, limitS float64
	countedS       float64
	goneS          float64 // when it was seen to leave; NaN while it runs
}

func (r *run) nextEdgeS() float64 {
	at, found := slices.BinarySearch(edgesS[:], r.countedS)
	if found {
		at++
	}
	if at >= edges {
		return math.Inf(1)
	}
	return edgesS[at]
}

// runs follows the cluster's pods through the scheduler's own informer and teaches a life table by them, as
// aaml.live.observers.lifetimes does: by those that end, and by those that do not.
type runs struct {
	now   func() float64         // seconds on a clock of its own
	nodes func(name string) bool // whether there still is a node of this name
	table *lifetimes             // touched by who decides alone

	mutex sync.Mutex
	byUID map[types.UID]*run
	gone  []types.UID
	edges edgeHeap
	nextS float64
}

type edge struct {
	atS float64
	uid types.UID
}

type edgeHeap []edge

func (h edgeHeap) Len() int           { return len(h) }
func (h edgeHeap) Less(i, j int) bool { return h[i].atS < h[j].atS }
func (h edgeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push is of container/heap.
func (h *edgeHeap) Push(x any) { *h = append(*h, x.(edge)) }

// Pop is of container/heap.
func (h *edgeHeap) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newRuns(table *lifetimes) *runs {
	start := time.Now()
	return &runs{
		now: func() float64 { return time.Since(start).Seconds() }, nodes: func(string) bool { return true },
		table: table, byUID: map[types.UID]*run{},
	}
}

// watch hears of pods from the scheduler's informer.
func (r *runs) watch(handle fwk.Handle) error {
	factory := handle.SharedInformerFactory()
	lister := factory.Core().V1().Nodes().Lister()
	r.nodes = func(name string) bool { _, err := lister.Get(name); return err == nil }
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { r.told(object) },
		UpdateFunc: func(_, object any) { r.told(object) },
		DeleteFunc: func(object any) {
			if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if pod, ok := object.(*v1.Pod); ok && pod.Spec.NodeName != "" {
				r.left(pod.UID)
			} else if ok {
				r.forget(pod.UID)
			}
		},
	})
	return err
}

func (r *runs) told(object any) {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return
	}
	if pod.Spec.NodeName == "" {
		r.forget(pod.UID)
		return
	}
	if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
		r.left(pod.UID)
		return
	}
	r.of(&framework.PodInfo{Pod: pod}, pod.Spec.NodeName)
}

func (r *runs) left(uid types.UID) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if known := r.byUID[uid]; known != nil && math.IsNaN(known.goneS) {
		known.goneS = r.now()
		r.gone = append(r.gone, uid)
	}
}

// forget drops a pod that was not bound after all: it never ran.
func (r *runs) forget(uid types.UID) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.byUID, uid)
}

// of returns the run of a pod on a node. One that is seen for the first time runs since its node started it, or from now on.
func (r *runs) of(info fwk.PodInfo, node string) *run {
	pod := info.GetPod()
	r.mutex.Lock()
	defer r.mutex.Unlock()
	known := r.byUID[pod.UID]
	if known == nil {
		nowS, asked := r.now(), requestBy(info)
		known = &run{keys: classesOf(pod, &asked), sinceS: nowS, limitS: limitOf(pod)}
		if started := pod.Status.StartTime; started != nil {
			known.sinceS -= max(time.Since(started.Time).Seconds(), 0)
		}
		known.countedS = max(nowS-known.sinceS, 0)
		r.byUID[pod.UID] = known
		heap.Push(&r.edges, edge{known.sinceS + known.nextEdgeS(), pod.UID})
	}
	known.node, known.goneS = node, math.NaN()
	return known
}

// learn teaches the table all that happened up to now, once in a second; it says whether there are new classes.
func (r *runs) learn(nowS float64) bool {
	if nowS < r.nextS {
		return false
	}
	r.nextS = nowS + learnEveryS
	before := len(r.table.parents)
	r.mutex.Lock()
	for len(r.edges) > 0 && r.edges[0].atS <= nowS {
		uid := heap.Pop(&r.edges).(edge).uid
		known := r.byUID[uid]
		if known != nil && math.IsNaN(known.goneS) && known.sinceS+known.nextEdgeS() <= nowS {
			r.count(known, known.nextEdgeS(), false)
			heap.Push(&r.edges, edge{known.sinceS + known.nextEdgeS(), uid})
		}
	}
	for _, uid := range r.gone {
		if known := r.byUID[uid]; known != nil && !math.IsNaN(known.goneS) {
			r.count(known, known.goneS-known.sinceS, r.nodes(known.node))
			delete(r.byUID, uid)
		}
	}
	r.gone = r.gone[:0]
	r.mutex.Unlock()
	r.table.solve()
	return len(r.table.parents) > before
}

func (r *runs) count(known *run, toS float64, ended bool) {
	r.table.learn(known.keys, known.limitS, known.countedS, max(toS, known.countedS), ended)
	known.countedS = toS
}

// life is what runs on one node, as a life table sees it.
type life struct{ pods []living }

type living struct {
	run              *run
	class            int32
	cpu, memory, gpu float64 // milli-cores, bytes, thousandths of a device
}

// lifeOf returns what runs on a node, nil where nothing does.
func (r *runs) lifeOf(info fwk.NodeInfo) *life {
	pods := info.GetPods()
	if len(pods) == 0 {
		return nil
	}
	l := &life{make([]living, 0, len(pods))}
	for _, pod := range pods {
		known, asked := r.of(pod, info.Node().Name), requestBy(pod)
		l.pods = append(l.pods, living{
			known, r.table.class(known.keys), float64(asked.cpu), float64(asked.memory), float64(asked.gpu.count * asked.gpu.milli),
		})
	}
	return l
}

// expected returns what is expected of a node's pods: CPU, memory and GPU that they still hold after each horizon, and in
// how many seconds the last of them is gone. Loads are whole, so that it does not matter in which order pods are added.
func (l *life) expected(table *lifetimes, nowS float64) (load [3][3]int64, emptyS float64) {
	for i := range l.pods {
		p := &l.pods[i]
		ageS, limitS := max(nowS-p.run.sinceS, 0), p.run.limitS
		emptyS = max(emptyS, table.rest(p.class, ageS, limitS))
		for h, horizonS := range horizonsS {
			share := table.survival(p.class, ageS, horizonS, limitS)
			load[h][0] += int64(math.RoundToEven(share * p.cpu))
			load[h][1] += int64(math.RoundToEven(share * p.memory))
			load[h][2] += int64(math.RoundToEven(share * p.gpu))
		}
	}
	return load, emptyS
}

// emptyS returns the second of what expected returns.
func (l *life) emptyS(table *lifetimes, nowS float64) (emptyS float64) {
	if l == nil {
		return 0
	}
	for i := range l.pods {
		p := &l.pods[i]
		emptyS = max(emptyS, table.rest(p.class, max(nowS-p.run.sinceS, 0), p.run.limitS))
	}
	return emptyS
}
