package aaml

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

const mostSiblings = 8 // on one node that are told apart

// request is the pod that waits, in the cluster's units.
type request struct {
	cpu, memory             int64
	scoredCPU, scoredMemory int64 // with kube-scheduler's defaults where it requests nothing
	gpu                     gpuRequest
	owner                   owner
	queue                   int     // pods that wait besides it
	restS, sure             float64 // for how long it is expected to run, and how sure that is; 0 where nothing is expected
}

// requestOf returns what a pod asks for that waits before `queue` others, and what the cluster expects of it.
func (c *cluster) requestOf(pod *v1.Pod, queue int) request {
	asked := requestBy(&framework.PodInfo{Pod: pod})
	asked.queue = queue
	if c.runs != nil {
		class := c.runs.table.class(classesOf(pod, &asked))
		asked.restS, asked.sure = c.runs.table.rest(class, 0, limitOf(pod)), c.runs.table.certainty(class, limitOf(pod))
	}
	return asked
}

// podResources returns what a pod asks for, as the filter of resources reckons.
func podResources(pod *v1.Pod) fwk.Resource {
	return (&framework.PodInfo{Pod: pod}).CalculateResource().Resource
}

func requestBy(info fwk.PodInfo) request {
	asked := info.CalculateResource()
	return request{
		cpu: asked.Resource.GetMilliCPU(), memory: asked.Resource.GetMemory(),
		scoredCPU: asked.Non0CPU, scoredMemory: asked.Non0Mem,
		gpu: gpuOf(info), owner: ownerOf(info.GetPod()),
	}
}

// view is one decision to make: U kinds of nodes, and V choices among them, which are the kinds with feasible nodes, told
// apart by how many pods of the pod's owner they have. Its memory is used again for the next decision.
type view struct {
	pod request

	nodes    int        // N
	feasible int        // of them
	kinds    []*facts   // [U]
	table    *lifetimes // nil where nothing is expected

	fragments *fragments // nil where no pods are expected that ask for GPUs
	nowS      float64
	count     []float64 // [U] nodes of the kind

	kindOf   []int32   // [V] the kind of a choice, in 0 ... U-1
	siblings []float64 // [V]
	chosen   []float64 // [V] nodes that are this choice

	rowChoice []int32 // [N] the choice that a row is, -1 where it is none
	compact   []int32 // slot of the cluster -> kind, -1 where it is free
	choiceOf  []int32 // kind * (mostSiblings + 1) + siblings -> choice, -1 where there is none
	sibling   []uint8 // [N]
	mask      []bool  // [N]
}

// marked returns those of the cluster's nodes that are feasible.
func (v *view) marked(infos []fwk.NodeInfo) []fwk.NodeInfo {
	found := make([]fwk.NodeInfo, 0, v.feasible)
	for row, is := range v.mask {
		if is {
			found = append(found, infos[row])
		}
	}
	return found
}

// sized returns a slice of n elements, of the memory of `of` where it is large enough; they hold anything.
func sized[T any](of []T, n int) []T {
	if cap(of) < n {
		return make([]T, n, n+n/4+16)
	}
	return of[:n]
}

// marker marks the rows of the nodes on which a pod may go, and returns how many nodes these are, in the cluster or not.
type marker func(c *cluster, mask []bool) int

// among marks the nodes that kube-scheduler's filters leave. Those that are not in the cluster are passed over.
func among(feasible []fwk.NodeInfo) marker {
	return func(c *cluster, mask []bool) int {
		next := int32(0) // filters hand nodes on nearly in their order
		for _, info := range feasible {
			if int(next) >= len(mask) || c.infos[next] != info {
				var ok bool
				if next, ok = c.rows[info.Node().Name]; !ok {
					next = 0
					continue
				}
			}
			mask[next] = true
			next++
		}
		return len(feasible)
	}
}

// look shows a pod and the nodes on which it may go, and returns how many these are to be.
func (v *view) look(c *cluster, pod request, mark marker) int {
	n := len(c.slots)
	v.pod, v.nodes, v.table = pod, n, nil
	if c.runs != nil {
		v.table, v.nowS = c.runs.table, c.runs.now()
	}
	v.mask = sized(v.mask, n)
	clear(v.mask)
	meant := mark(c, v.mask)
	v.kinds, v.count = v.kinds[:0], v.count[:0]
	v.compact = sized(v.compact, len(c.facts))
	for slot, count := range c.counts {
		v.compact[slot] = -1
		if count > 0 {
			v.compact[slot] = int32(len(v.kinds))
			v.kinds, v.count = append(v.kinds, &c.facts[slot]), append(v.count, float64(count))
		}
	}
	v.sibling = sized(v.sibling, n)
	clear(v.sibling)
	if pod.owner != (owner{}) {
		for row, pods := range c.owned[pod.owner] {
			v.sibling[row] = uint8(min(pods, mostSiblings))
		}
	}
	v.choiceOf = sized(v.choiceOf, len(v.kinds)*(mostSiblings+1))
	for i := range v.choiceOf {
		v.choiceOf[i] = -1
	}
	v.kindOf, v.siblings, v.chosen = v.kindOf[:0], v.siblings[:0], v.chosen[:0]
	v.rowChoice, v.feasible = sized(v.rowChoice, n), 0
	for row := range n {
		if !v.mask[row] {
			v.rowChoice[row] = -1
			continue
		}
		v.feasible++
		kind, beside := v.compact[c.slots[row]], v.sibling[row]
		at := int(kind)*(mostSiblings+1) + int(beside)
		if v.choiceOf[at] < 0 {
			v.choiceOf[at] = int32(len(v.kindOf))
			v.kindOf, v.siblings, v.chosen = append(v.kindOf, kind), append(v.siblings, float64(beside)), append(v.chosen, 0)
		}
		v.rowChoice[row] = v.choiceOf[at]
		v.chosen[v.choiceOf[at]]++
	}
	return meant
}
