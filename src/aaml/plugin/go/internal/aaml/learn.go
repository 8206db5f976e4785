package aaml

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	tellVersion   = 1    // of the messages that aaml.plugin.messages describes
	queueLimit    = 4096 // messages that wait for the learner; beyond that choices are not told
	mostObjects   = 200  // in a message
	redialEvery   = time.Second
	otherPlugins  = "kube-scheduler" // who chose where the policy did not
	choiceKey     = Name + "/choice"
	bySoftmax     = "softmax"
	byAny         = "any"
	byLeastDemand = "least-requested"
)

var (
	_ fwk.ReservePlugin  = &Plugin{}
	_ fwk.PostBindPlugin = &Plugin{}
)

// sender tells a learner over a Unix socket what is decided, and what became of it. No decision waits for that: what the
// learner does not take in time is not told and counted, and the next choice that is told brings the state up to date.
//
// The thread that schedules calls begin, exploring and choice, and alone uses the fields below `link`.
type sender struct {
	socket string
	link   atomic.Pointer[link] // nil: nobody listens

	synced *link // the learner that has what is known here
	behind bool  // the learner is: choices are not told until half of what waits is gone
	lost   int
	nodes  map[string]*sentNode
	rows   []*sentNode // in the order of the snapshot
	free   []int32     // numbers of nodes that are gone

	rng      *rand.Rand
	explored bool // the latest decision is another node than the best one
}

// link is one connection to a learner. Whoever tells of a choice adds one to the binds that are to be told, and there is
// always room for those.
type link struct {
	queue   chan any
	binds   atomic.Int64
	explore atomic.Pointer[explore]
}

type sentNode struct {
	number     int32
	generation int64
	node       *v1.Node
	pods       map[types.UID]sentPod
	seen       bool
}

// sentPod is a pod that the learner knows to be on a node, with what may change of it; node is nil right after its choice.
type sentPod struct {
	pod         *v1.Pod
	cpu, memory int64
}

// explore is what the learner says: how another node than the best is to be taken, and with which chance.
type explore struct {
	By     string  `json:"by"`
	Chance float64 `json:"chance"`
}

// The messages, as aaml.plugin.messages describes them.
type (
	hello struct {
		Type    string `json:"type"`
		Version int    `json:"version"`
	}
	numberedNode struct {
		Number int32    `json:"number"`
		Node   *v1.Node `json:"node"`
	}
	changes struct {
		Type      string         `json:"type"`
		Nodes     []numberedNode `json:"nodes,omitempty"`
		GoneNodes []int32        `json:"goneNodes,omitempty"`
		Pods      []*v1.Pod      `json:"pods,omitempty"`
		GonePods  []types.UID    `json:"gonePods,omitempty"`
	}
	choice struct {
		Type     string  `json:"type"`
		Pod      *v1.Pod `json:"pod"`
		Node     int32   `json:"node"`
		Mask     []byte  `json:"mask"`
		By       string  `json:"by,omitempty"`
		Explored bool    `json:"explored,omitempty"`
		Weights  string  `json:"weights,omitempty"`
		Pending  int     `json:"pending,omitempty"`
		Lost     int     `json:"lost,omitempty"`

		changes changes
	}
	bind struct {
		Type   string    `json:"type"`
		UID    types.UID `json:"uid"`
		Failed string    `json:"failed,omitempty"`
	}
)

// thought is what is kept of a pod from PreScore to the end of its bind.
type thought struct {
	feasible []fwk.NodeInfo // until Reserve
	best     string         // the policy's choice; empty where it made none
	explored bool
	weights  string
	pending  int

	link *link // that was told of the choice
}

// Clone returns the thought itself.
func (t *thought) Clone() fwk.StateData { return t }

func newSender(socket string) *sender {
	return &sender{socket: socket, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
}

// ---- for the thread that schedules -----------------------------------------------------------------------------------

// begin keeps among which nodes a pod's is chosen.
func (t *sender) begin(state fwk.CycleState, feasible []fwk.NodeInfo) *thought {
	if t == nil || t.link.Load() == nil {
		return nil
	}
	kept := &thought{feasible: feasible, pending: waiting()}
	state.Write(choiceKey, kept)
	return kept
}

// exploring returns how to explore, nil where nobody would learn from it.
func (t *sender) exploring() *explore {
	if t.behind {
		return nil
	}
	if to := t.link.Load(); to != nil {
		return to.explore.Load()
	}
	return nil
}

// decided keeps what the policy chose.
func (t *sender) decided(kept *thought, made decision, by *policy) {
	if kept != nil {
		kept.best, kept.weights, kept.explored = made.best(), by.sha256, t.explored
	}
}

// other returns a row that is to be taken to learn from it, -1 where the best one is.
func (t *sender) other(v *view, scores []float64) int32 {
	if t == nil {
		return -1
	}
	t.explored = false
	how := t.exploring()
	if how == nil || v.feasible == 0 || t.rng.Float64() >= how.Chance {
		return -1
	}
	taken, most := int32(-1), math.Inf(-1)
	for each, score := range scores {
		switch how.By {
		case bySoftmax: // the largest of scores plus Gumbel noise is a sample of the softmax (Gumbel 1954)
			score += math.Log(v.chosen[each]) - math.Log(t.rng.ExpFloat64())
		case byLeastDemand:
			k := v.kinds[v.kindOf[each]]
			score = -float64(k.usedCPU+v.pod.cpu)/atLeast1(k.cpu) - float64(k.usedMemory+v.pod.memory)/atLeast1(k.memory)
		default:
			score = math.Log(v.chosen[each]) - math.Log(t.rng.ExpFloat64())
		}
		if score > most {
			taken, most = int32(each), score
		}
	}
	t.explored = how.By != bySoftmax // a sample is what an actor's best choice is
	left := t.rng.IntN(int(v.chosen[taken]))
	for row, each := range v.rowChoice {
		if each == taken {
			if left == 0 {
				return int32(row)
			}
			left--
		}
	}
	return -1
}

// choose tells that a pod got a node, and before that what has changed since the choice before.
func (t *sender) choose(infos []fwk.NodeInfo, pod *v1.Pod, node string, made *thought) {
	defer func() {
		if caught := recover(); caught != nil {
			klog.ErrorS(fmt.Errorf("%v", caught), "AAML: a choice was not told", "pod", klog.KObj(pod), "stack", string(debug.Stack()))
			t.synced, t.rows, t.nodes = nil, nil, nil
			t.link.Store(nil) // it begins anew
		}
	}()
	to := t.link.Load()
	if to == nil {
		t.synced, t.rows, t.nodes = nil, nil, nil // nobody needs them
		t.lose()
		return
	}
	if to != t.synced {
		t.synced, t.behind, t.rows, t.nodes, t.free = to, false, nil, map[string]*sentNode{}, nil
	}
	waits := len(to.queue) + int(to.binds.Load())
	t.behind = waits+2 > cap(to.queue) || t.behind && waits > cap(to.queue)/2
	if t.behind {
		t.lose()
		return
	}
	say := choice{Type: "choice", Pod: pod, Lost: t.lost, Pending: made.pending, Explored: made.explored, Weights: made.weights}
	t.follow(infos, &say.changes)
	at, ok := t.nodes[node]
	if !ok {
		t.lose()
		return
	}
	say.Node = at.number
	if made.best != node && len(made.feasible) > 1 {
		say.By, say.Explored = otherPlugins, false
	}
	say.Mask = t.mask(made.feasible, at)
	at.pods[pod.UID] = sentPod{cpu: -1}
	made.feasible, made.link = nil, to
	to.binds.Add(1)
	to.queue <- say
	t.lost = 0
}

func (t *sender) lose() {
	t.lost++
	choicesDropped.Inc()
}

// mask returns a bit for each number of a node: those of the nodes among which one was chosen.
func (t *sender) mask(feasible []fwk.NodeInfo, chosen *sentNode) []byte {
	mask := make([]byte, (len(t.nodes)+len(t.free)+7)/8)
	next := 0 // filters hand nodes on nearly in their order
	for _, info := range feasible {
		node := info.Node()
		if next >= len(t.rows) || t.rows[next].node != node {
			for next = range t.rows {
				if t.rows[next].node == node {
					break
				}
			}
		}
		if t.rows[next].node == node {
			mask[t.rows[next].number/8] |= 1 << (t.rows[next].number % 8)
		}
		next++
	}
	mask[chosen.number/8] |= 1 << (chosen.number % 8)
	return mask
}

// follow finds what has changed in the snapshot since it was told last.
func (t *sender) follow(infos []fwk.NodeInfo, found *changes) {
	moved := len(infos) != len(t.rows)
	if !moved {
		for row, info := range infos {
			// A generation is given once in all: who has it has not changed.
			if at := t.rows[row]; at.generation != info.GetGeneration() && at.node.Name != info.Node().Name {
				moved = true
				break
			}
		}
	}
	if moved {
		t.rearrange(infos, found)
	}
	for row, info := range infos {
		if at := t.rows[row]; at.generation != info.GetGeneration() {
			t.renew(at, info, found)
		}
	}
}

func (t *sender) rearrange(infos []fwk.NodeInfo, found *changes) {
	for _, at := range t.nodes {
		at.seen = false
	}
	t.rows = make([]*sentNode, len(infos))
	var added []int
	for row, info := range infos {
		if at, ok := t.nodes[info.Node().Name]; ok {
			at.seen, t.rows[row] = true, at
		} else {
			added = append(added, row)
		}
	}
	for name, at := range t.nodes {
		if !at.seen {
			found.GoneNodes = append(found.GoneNodes, at.number)
			for uid := range at.pods {
				found.GonePods = append(found.GonePods, uid)
			}
			t.free = append(t.free, at.number)
			delete(t.nodes, name)
		}
	}
	for _, row := range added {
		at := &sentNode{number: int32(len(t.nodes)), generation: -1, pods: map[types.UID]sentPod{}}
		if last := len(t.free) - 1; last >= 0 {
			at.number, t.free = t.free[last], t.free[:last]
		}
		t.nodes[infos[row].Node().Name], t.rows[row] = at, at
	}
}

// renew finds what has changed on a node.
func (t *sender) renew(at *sentNode, info fwk.NodeInfo, found *changes) {
	at.generation = info.GetGeneration()
	if node := info.Node(); at.node != node {
		at.node = node
		found.Nodes = append(found.Nodes, numberedNode{at.number, node})
	}
	there := info.GetPods()
	for _, each := range there {
		pod, size := each.GetPod(), each.CalculateResource().Resource
		before, ok := at.pods[pod.UID]
		if before.pod == pod {
			continue
		}
		now := sentPod{pod, size.GetMilliCPU(), size.GetMemory()}
		at.pods[pod.UID] = now
		if ok && (before.pod == nil || before.cpu == now.cpu && before.memory == now.memory && maps.Equal(before.pod.Labels, pod.Labels)) {
			continue
		}
		found.Pods = append(found.Pods, pod)
	}
	if len(at.pods) == len(there) {
		return
	}
	stay := make(map[types.UID]bool, len(there))
	for _, each := range there {
		stay[each.GetPod().UID] = true
	}
	for uid := range at.pods {
		if !stay[uid] {
			delete(at.pods, uid)
			found.GonePods = append(found.GonePods, uid)
		}
	}
}

// ---- for the threads that bind ---------------------------------------------------------------------------------------

// end tells what became of a choice that was told.
func (t *sender) end(state fwk.CycleState, pod *v1.Pod, failed string) {
	data, err := state.Read(choiceKey)
	if err != nil {
		return
	}
	made := data.(*thought)
	if made.link == nil {
		return
	}
	made.link.queue <- bind{Type: "bind", UID: pod.UID, Failed: failed} // before there is room for another choice
	made.link.binds.Add(-1)
	made.link = nil
}

// Reserve takes note of the node that a pod got, chooses its devices there, and tells the learner, where there is one.
func (p *Plugin) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	p.chose(state, pod, node)
	p.takeDevices(pod, node)
	if p.sender == nil {
		return nil
	}
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil
	}
	made := &thought{} // without more: the only node that the filters left, of which nobody was asked
	if data, err := state.Read(choiceKey); err == nil {
		made = data.(*thought)
	} else if kept := p.sender.begin(state, nil); kept != nil {
		made = kept
	}
	p.sender.choose(infos, pod, node, made)
	return nil
}

// Unreserve gives back what a pod got that is not bound after all, and tells the learner.
func (p *Plugin) Unreserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	p.held.drop(pod.UID)
	if p.sender != nil {
		p.sender.end(state, pod, "not bound; kube-scheduler tries again")
	}
}

// PostBind tells the learner that a pod is bound.
func (p *Plugin) PostBind(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) {
	if p.sender != nil {
		p.sender.end(state, pod, "")
	}
}

// ---- for the thread that talks ---------------------------------------------------------------------------------------

// run connects to learners, one after the other, until the context is done.
func (t *sender) run(ctx context.Context) {
	var dialer net.Dialer
	for ctx.Err() == nil {
		if connection, err := dialer.DialContext(ctx, "unix", t.socket); err == nil {
			klog.InfoS("AAML: a learner is there", "socket", t.socket)
			err := t.talk(ctx, connection)
			klog.InfoS("AAML: the learner is gone; deciding goes on by the weights in force", "socket", t.socket, "reason", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(redialEvery):
		}
	}
}

// talk tells one learner what there is to tell, until it is gone or the context is done.
func (t *sender) talk(ctx context.Context, connection net.Conn) error {
	defer context.AfterFunc(ctx, func() { connection.Close() })()
	defer connection.Close()
	to := &link{queue: make(chan any, queueLimit)}
	out := bufio.NewWriterSize(connection, 1<<16)
	encoder := json.NewEncoder(out)
	if err := encoder.Encode(hello{"hello", tellVersion}); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	ends := make(chan error, 1)
	go func() { ends <- listen(connection, to) }()
	defer learnerThere.Set(0)
	learnerThere.Set(1)
	t.link.Store(to)
	defer t.link.CompareAndSwap(to, nil)
	for {
		select {
		case message := <-to.queue:
			if err := write(encoder, message); err != nil {
				return err
			}
			if len(to.queue) == 0 {
				if err := out.Flush(); err != nil {
					return err
				}
			}
		case err := <-ends:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		if t.link.Load() != to {
			return fmt.Errorf("it is told anew")
		}
	}
}

// listen takes what the learner says until it is gone.
func listen(connection net.Conn, to *link) error {
	lines := json.NewDecoder(connection)
	for {
		said := &explore{}
		if err := lines.Decode(said); err != nil {
			return err
		}
		if said.By != bySoftmax && said.By != byAny && said.By != byLeastDemand || !(said.Chance >= 0 && said.Chance <= 1) {
			return fmt.Errorf("it says %+v, which is no way to explore", *said)
		}
		to.explore.Store(said)
	}
}

// write writes a message, what changed before a choice in pieces.
func write(encoder *json.Encoder, message any) error {
	said, ok := message.(choice)
	if !ok {
		return encoder.Encode(message)
	}
	all := &said.changes
	for len(all.Nodes)+len(all.GoneNodes)+len(all.Pods)+len(all.GonePods) > 0 {
		piece := changes{Type: "changes", GoneNodes: all.GoneNodes, GonePods: all.GonePods}
		all.GoneNodes, all.GonePods = nil, nil
		for len(all.Nodes) > 0 && len(piece.Nodes) < mostObjects {
			piece.Nodes = append(piece.Nodes, numberedNode{all.Nodes[0].Number, trimmedNode(all.Nodes[0].Node)})
			all.Nodes = all.Nodes[1:]
		}
		for len(all.Nodes) == 0 && len(all.Pods) > 0 && len(piece.Pods) < mostObjects {
			piece.Pods = append(piece.Pods, trimmedPod(all.Pods[0]))
			all.Pods = all.Pods[1:]
		}
		if err := encoder.Encode(piece); err != nil {
			return err
		}
	}
	choicesSent.Inc()
	said.Pod = trimmedPod(said.Pod)
	return encoder.Encode(said)
}

// trimmedNode returns what scheduling reads of a node.
func trimmedNode(node *v1.Node) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels, ResourceVersion: node.ResourceVersion},
		Spec:       v1.NodeSpec{Taints: node.Spec.Taints, Unschedulable: node.Spec.Unschedulable},
		Status:     v1.NodeStatus{Allocatable: node.Status.Allocatable, DeclaredFeatures: node.Status.DeclaredFeatures},
	}
}

// trimmedPod returns what scheduling reads of a pod.
func trimmedPod(pod *v1.Pod) *v1.Pod {
	trimmed := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion, Labels: pod.Labels,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, OwnerReferences: pod.OwnerReferences,
		},
		Spec: pod.Spec,
		Status: v1.PodStatus{
			Phase: pod.Status.Phase, StartTime: pod.Status.StartTime, QOSClass: pod.Status.QOSClass,
			ContainerStatuses: trimmedStatuses(pod.Status.ContainerStatuses), InitContainerStatuses: trimmedStatuses(pod.Status.InitContainerStatuses),
		},
	}
	for key, value := range pod.Annotations {
		if key == gpuCount || key == gpuMilli || key == gpuModel || key == gpuIndex {
			if trimmed.Annotations == nil {
				trimmed.Annotations = map[string]string{}
			}
			trimmed.Annotations[key] = value
		}
	}
	trimmed.Spec.Volumes, trimmed.Spec.EphemeralContainers = nil, nil
	trimmed.Spec.Containers, trimmed.Spec.InitContainers = trimmedContainers(pod.Spec.Containers), trimmedContainers(pod.Spec.InitContainers)
	return trimmed
}

func trimmedContainers(containers []v1.Container) []v1.Container {
	var trimmed []v1.Container
	for i := range containers {
		c := &containers[i]
		trimmed = append(trimmed, v1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	return trimmed
}

// trimmedStatuses returns what containers were given, which differs from what they ask for while they are resized.
func trimmedStatuses(statuses []v1.ContainerStatus) []v1.ContainerStatus {
	var trimmed []v1.ContainerStatus
	for i := range statuses {
		if s := &statuses[i]; len(s.AllocatedResources) > 0 {
			trimmed = append(trimmed, v1.ContainerStatus{Name: s.Name, AllocatedResources: s.AllocatedResources, Resources: s.Resources})
		}
	}
	return trimmed
}
