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
	model                         string // of the GPUs
	podKinds                      uint64 // bit per gpuRequest.kind of the pods on it
	life                          *life  // what runs on it, where a policy expects lifetimes: no two nodes have the same
}

// owner is whose pod a pod is: the kind and name of its controller.
type owner struct{ kind, name string }

type ownerCount struct {
	owner owner
	pods  int32
}

// cluster follows the nodes of kube-scheduler's snapshot: rows are in its order. Only nodes whose generation changed are
// read again. Kinds are slots that nodes with the same facts share; counts says how many nodes a slot has, 0 where it is free.
type cluster struct {
	infos       []fwk.NodeInfo // of the snapshot that was followed last
	generations []int64
	names       []string
	slots       []int32 // the kind of each row, -1 where it is not known yet
	closed      []bool  // rows that are for pods only that tolerate something
	owners      [][]ownerCount
	rows        map[string]int32

	facts  []facts
	counts []int32
	free   []int32
	kinds  map[facts]int32
	owned  map[owner]map[int32]int32 // pods by row

	runs *runs // of a policy that expects lifetimes, else nil
	held *held // devices that were chosen for pods right now
}

func newCluster() *cluster {
	return &cluster{rows: map[string]int32{}, kinds: map[facts]int32{}, owned: map[owner]map[int32]int32{}}
}

// follow brings the rows up to date with the nodes of a snapshot.
func (c *cluster) follow(infos []fwk.NodeInfo) {
	if len(infos) != len(c.generations) {
		c.rearrange(infos)
	}
	c.infos = infos
	for row, info := range infos {
		if generation := info.GetGeneration(); generation != c.generations[row] {
			// A generation is given once in all: who has it has not changed. Another one may be another node's.
			if c.names[row] != info.Node().Name {
				c.rearrange(infos)
				c.follow(infos)
				return
			}
			c.renew(int32(row), info)
			c.generations[row] = generation
		}
	}
}

// rearrange gives the nodes new rows, and forgets those that left. What is known of a node moves with it.
func (c *cluster) rearrange(infos []fwk.NodeInfo) {
	n := len(infos)
	old, rows := *c, c.rows
	c.generations, c.names, c.slots, c.owners = make([]int64, n), make([]string, n), make([]int32, n), make([][]ownerCount, n)
	c.closed = make([]bool, n)
	c.rows, c.owned = make(map[string]int32, n), map[owner]map[int32]int32{}
	for row, info := range infos {
		name := info.Node().Name
		c.names[row], c.rows[name] = name, int32(row)
		c.generations[row], c.slots[row] = -1, -1
		if from, ok := rows[name]; ok {
			delete(rows, name)
			c.generations[row], c.slots[row], c.owners[row] = old.generations[from], old.slots[from], old.owners[from]
			c.closed[row] = old.closed[from]
			for _, each := range c.owners[row] {
				c.own(each.owner, int32(row), each.pods)
			}
		}
	}
	for _, row := range rows {
		c.leave(old.slots[row])
	}
}

// expect brings what is expected of pods up to date: those of classes that are new are looked up again.
func (c *cluster) expect() {
	if c.runs != nil && c.runs.learn(c.runs.now()) {
		for row := range c.generations {
			c.generations[row] = -1
		}
	}
}

// renew reads a node anew.
func (c *cluster) renew(row int32, info fwk.NodeInfo) {
	seen, slot := read(info, c.held), c.slots[row]
	if c.runs != nil {
		seen.life = c.runs.lifeOf(info)
	}
	if slot < 0 || c.facts[slot] != seen {
		c.leave(slot)
		c.slots[row] = c.join(seen)
	}
	c.closed[row] = closed(info.Node())
	for _, each := range c.owners[row] {
		c.own(each.owner, row, -each.pods)
	}
	c.owners[row] = countOwners(c.owners[row][:0], info.GetPods())
	for _, each := range c.owners[row] {
		c.own(each.owner, row, each.pods)
	}
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

func read(info fwk.NodeInfo, chosen *held) facts {
	n, has, used, scored := info.Node(), info.GetAllocatable(), info.GetRequested(), info.GetNonZeroRequested()
	_, controlPlane := n.Labels[controlPlaneLabel]
	devices, model := packDevices(freeDevices(info, chosen)), ""
	if devices != "" {
		model = modelOf(n)
	}
	return facts{
		cpu: has.GetMilliCPU(), memory: has.GetMemory(), pods: int64(has.GetAllowedPodNumber()),
		usedCPU: used.GetMilliCPU(), usedMemory: used.GetMemory(), usedPods: int64(len(info.GetPods())),
		scoredCPU: scored.GetMilliCPU(), scoredMemory: scored.GetMemory(),
		cordoned: n.Spec.Unschedulable, capacity: !controlPlane,
		devices: devices, model: model, podKinds: kindsOf(info.GetPods()),
	}
}

func modelOf(n *v1.Node) string {
	if model, ok := n.Labels[gpuModel]; ok {
		return model
	}
	return n.Labels[nvidiaModel]
}

// kindsOf returns a bit for each kind of pods with GPUs.
func kindsOf(pods []fwk.PodInfo) (kinds uint64) {
	for _, pod := range pods {
		if asked := gpuOf(pod); asked.count > 0 {
			kinds |= 1 << asked.kind()
		}
	}
	return kinds
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
