package aaml

import (
	"encoding/binary"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// facts are what a policy sees of one node, in whole numbers: nodes with the same facts are scored once.
type facts struct {
	cpu, memory, pods             int64  // allocatable: milli-cores, bytes, pieces
	usedCPU, usedMemory, usedPods int64  // requested by the pods on it
	scoredCPU, scoredMemory       int64  // the same, where pods that request nothing count with kube-scheduler's defaults
	cordoned, capacity            bool   // takes no new pods; is no control plane, which no mean counts
	devices                       string // free thousandths of each GPU, two bytes each
}

// owner is whose pod a pod is: the kind and name of its controller.
type owner struct{ kind, name string }

type ownerCount struct {
	owner owner
	pods  int32
}

// node is what is kept of one node until its NodeInfo changes.
type node struct {
	name       string
	generation int64
	kind       int32
	owners     []ownerCount
}

// cluster follows the nodes of kube-scheduler's snapshot: rows are in its order. Only nodes whose generation changed are
// read again. Kinds are slots that nodes with the same facts share; count is how many nodes a slot has, 0 where it is free.
type cluster struct {
	nodes  []node
	rows   map[string]int32
	facts  []facts
	counts []int32
	free   []int32
	kinds  map[facts]int32
	owned  map[owner]map[int32]int32 // pods by row
}

func newCluster() *cluster {
	return &cluster{rows: map[string]int32{}, kinds: map[facts]int32{}, owned: map[owner]map[int32]int32{}}
}

// follow brings the rows up to date with the nodes of a snapshot.
func (c *cluster) follow(infos []fwk.NodeInfo) {
	if !c.same(infos) {
		c.rearrange(infos)
	}
	for row, info := range infos {
		if n := &c.nodes[row]; n.generation != info.GetGeneration() {
			c.renew(int32(row), info)
		}
	}
}

// same says whether the rows are those of the nodes, in their order.
func (c *cluster) same(infos []fwk.NodeInfo) bool {
	if len(infos) != len(c.nodes) {
		return false
	}
	for row, info := range infos {
		n := &c.nodes[row]
		// A generation is given once in all: who has it has not changed, and so has the name that we know.
		if n.generation != info.GetGeneration() && n.name != info.Node().Name {
			return false
		}
	}
	return true
}

// rearrange gives the nodes new rows, and forgets those that left. What is known of a node moves with it.
func (c *cluster) rearrange(infos []fwk.NodeInfo) {
	old, oldRows := c.nodes, c.rows
	c.nodes, c.rows = make([]node, len(infos)), make(map[string]int32, len(infos)) // decisions may still read the old ones
	c.owned = map[owner]map[int32]int32{}
	for row, info := range infos {
		name := info.Node().Name
		c.rows[name] = int32(row)
		if from, ok := oldRows[name]; ok && old[from].name != "" {
			c.nodes[row], old[from] = old[from], node{}
			for _, each := range c.nodes[row].owners {
				c.own(each.owner, int32(row), each.pods)
			}
		} else {
			c.nodes[row] = node{name: name, generation: -1, kind: -1}
		}
	}
	for i := range old {
		if old[i].name != "" {
			c.leave(old[i].kind)
		}
	}
}

// renew reads a node anew.
func (c *cluster) renew(row int32, info fwk.NodeInfo) {
	n := &c.nodes[row]
	seen := read(info)
	if n.kind < 0 || c.facts[n.kind] != seen {
		c.leave(n.kind)
		n.kind = c.join(seen)
	}
	for _, each := range n.owners {
		c.own(each.owner, row, -each.pods)
	}
	n.owners = countOwners(n.owners[:0], info.GetPods())
	for _, each := range n.owners {
		c.own(each.owner, row, each.pods)
	}
	n.generation = info.GetGeneration()
}

func (c *cluster) own(who owner, row, pods int32) {
	rows := c.owned[who]
	if rows == nil {
		rows = map[int32]int32{}
		c.owned[who] = rows
	}
	if rows[row] += pods; rows[row] == 0 {
		delete(rows, row)
		if len(rows) == 0 {
			delete(c.owned, who)
		}
	}
}

func (c *cluster) join(seen facts) int32 {
	kind, ok := c.kinds[seen]
	if !ok {
		if last := len(c.free) - 1; last >= 0 {
			kind, c.free = c.free[last], c.free[:last]
			c.facts[kind] = seen
		} else {
			kind = int32(len(c.facts))
			c.facts, c.counts = append(c.facts, seen), append(c.counts, 0)
		}
		c.kinds[seen] = kind
	}
	c.counts[kind]++
	return kind
}

func (c *cluster) leave(kind int32) {
	if kind < 0 {
		return
	}
	if c.counts[kind]--; c.counts[kind] == 0 {
		delete(c.kinds, c.facts[kind])
		c.free = append(c.free, kind)
	}
}

func read(info fwk.NodeInfo) facts {
	n, has, used, scored := info.Node(), info.GetAllocatable(), info.GetRequested(), info.GetNonZeroRequested()
	_, controlPlane := n.Labels[controlPlaneLabel]
	return facts{
		cpu: has.GetMilliCPU(), memory: has.GetMemory(), pods: int64(has.GetAllowedPodNumber()),
		usedCPU: used.GetMilliCPU(), usedMemory: used.GetMemory(), usedPods: int64(len(info.GetPods())),
		scoredCPU: scored.GetMilliCPU(), scoredMemory: scored.GetMemory(),
		cordoned: n.Spec.Unschedulable, capacity: !controlPlane,
		devices: packDevices(freeDevices(info)),
	}
}

func packDevices(free []int64) string {
	if len(free) == 0 {
		return ""
	}
	packed := make([]byte, 0, 2*len(free))
	for _, milli := range free {
		packed = binary.LittleEndian.AppendUint16(packed, uint16(milli))
	}
	return string(packed)
}

// device returns the free thousandths of GPU i.
func (f *facts) device(i int) int64 { return int64(f.devices[2*i]) | int64(f.devices[2*i+1])<<8 }

func ownerOf(pod *v1.Pod) owner {
	if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
		return owner{ref.Kind, ref.Name}
	}
	return owner{}
}

// countOwners appends how many of the pods each owner has; a node has few.
func countOwners(counts []ownerCount, pods []fwk.PodInfo) []ownerCount {
next:
	for _, pod := range pods {
		who := ownerOf(pod.GetPod())
		if who == (owner{}) {
			continue
		}
		for i := range counts {
			if counts[i].owner == who {
				counts[i].pods++
				continue next
			}
		}
		counts = append(counts, ownerCount{who, 1})
	}
	return counts
}
