package aaml

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// learner listens as `aaml learn` does.
type learner struct {
	t        *testing.T
	listener net.Listener
	talks    net.Conn
	lines    *bufio.Reader
}

// message is any message that a learner hears.
type message struct {
	Type, UID, Failed, By, Weights string
	Version, Node, Lost            int
	Nodes                          []struct {
		Number int
		Node   v1.Node
	}
	GoneNodes []int
	Pods      []v1.Pod
	GonePods  []string
	Pod       v1.Pod
	Mask      []byte
	Explored  bool
}

func listening(t *testing.T) *learner {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "learn.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return &learner{t: t, listener: listener}
}

// accept takes a connection and reads its hello.
func (l *learner) accept() {
	l.t.Helper()
	var err error
	if l.talks, err = l.listener.Accept(); err != nil {
		l.t.Fatal(err)
	}
	l.lines = bufio.NewReader(l.talks)
	if hello := l.hear(); hello.Type != "hello" || hello.Version != 1 {
		l.t.Fatalf("%+v; expected a hello", hello)
	}
}

func (l *learner) hear() (heard message) {
	l.t.Helper()
	line, err := l.lines.ReadBytes('\n')
	if err != nil {
		l.t.Fatal(err)
	}
	if err := json.Unmarshal(line, &heard); err != nil {
		l.t.Fatalf("%s: %v", line, err)
	}
	return heard
}

// choice returns the next choice, and all that was told before it.
func (l *learner) choice() (chosen message, before message) {
	l.t.Helper()
	for {
		heard := l.hear()
		switch heard.Type {
		case "choice":
			return heard, before
		case "changes":
			before.Nodes, before.Pods = append(before.Nodes, heard.Nodes...), append(before.Pods, heard.Pods...)
			before.GoneNodes, before.GonePods = append(before.GoneNodes, heard.GoneNodes...), append(before.GonePods, heard.GonePods...)
		}
	}
}

// learning returns a plugin with a learner that is there.
func learning(t *testing.T, infos []fwk.NodeInfo) (*Plugin, *learner) {
	t.Helper()
	l := listening(t)
	p := started(t, fmt.Sprintf(`{"weightsFile": %q, "learnSocket": %q}`, leastAllocated(t), l.listener.Addr()), infos)
	l.accept()
	eventually(t, "a learner that is known", func() bool { return p.sender.link.Load() != nil })
	return p, l
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not seen", what)
		}
	}
}

// place schedules a pod as kube-scheduler does, up to its bind; on the policy's choice where no node is given.
func (p *Plugin) place(t *testing.T, name, node string, feasible []fwk.NodeInfo) (fwk.CycleState, *v1.Pod) {
	t.Helper()
	cycle, pod := framework.NewCycleState(), madePod(name, "app", 100, 128)
	if len(feasible) > 1 {
		if status := p.PreScore(context.Background(), cycle, pod, feasible); !status.IsSuccess() {
			t.Fatal(status)
		}
		if node == "" {
			data, _ := cycle.Read(Name)
			node = data.(decision).best()
		}
	}
	pod.Spec.NodeName = node
	if status := p.Reserve(context.Background(), cycle, pod, node); !status.IsSuccess() {
		t.Fatal(status)
	}
	return cycle, pod
}

func wherePlaced(pods []v1.Pod) (found []string) {
	for _, pod := range pods {
		found = append(found, pod.Name+" on "+pod.Spec.NodeName)
	}
	return found
}

func TestTheLearnerHearsWhatChangedAndWhatWasChosenAndWhatBecameOfIt(t *testing.T) {
	infos := twoNodes()
	infos[0].GetPods()[0].GetPod().Spec.NodeName = "used"
	p, l := learning(t, infos)
	cycle, first := p.place(t, "a", "", infos)
	p.PostBind(context.Background(), cycle, first, "empty")
	chosen, before := l.choice()
	if len(before.Nodes) != 2 || !slices.Equal(wherePlaced(before.Pods), []string{"runs on used"}) {
		t.Fatalf("%+v; expected all of the cluster", before)
	}
	number := map[string]int{}
	for _, each := range before.Nodes {
		number[each.Node.Name] = each.Number
	}
	if chosen.Pod.Name != "a" || chosen.Node != number["empty"] || chosen.Mask[0] != 3 || chosen.By != "" || chosen.Weights != p.weights.current.Load().sha256 {
		t.Fatalf("%+v; expected a on the empty node of two, by the weights in force", chosen)
	}
	if heard := l.hear(); heard.Type != "bind" || heard.UID != string(first.UID) || heard.Failed != "" {
		t.Fatalf("%+v; expected that it was bound", heard)
	}
	infos[1].AddPodInfo(podInfo(first)) // what the learner knows
	other := madePod("theirs", "app", 300, 128)
	other.Spec.NodeName = "used"
	infos[0].AddPodInfo(podInfo(other))
	cycle, second := p.place(t, "b", "used", infos[:1])
	p.Unreserve(context.Background(), cycle, second, "used")
	p.Unreserve(context.Background(), cycle, second, "used") // may come twice
	chosen, before = l.choice()
	if len(before.Nodes) != 0 || !slices.Equal(wherePlaced(before.Pods), []string{"theirs on used"}) {
		t.Fatalf("%+v; expected the one pod that is new", before)
	}
	if chosen.Node != number["used"] || chosen.Mask[0] != 1<<number["used"] || chosen.By != "" {
		t.Fatalf("%+v; expected the only node", chosen)
	}
	if heard := l.hear(); heard.Type != "bind" || heard.Failed == "" {
		t.Fatalf("%+v; expected that it was not bound", heard)
	}
	joined := framework.NewNodeInfo()
	joined.SetNode(madeNode("joined", 4000, 16))
	p.handle.(*handle).infos = []fwk.NodeInfo{joined, infos[1]}
	_, _ = p.place(t, "c", "empty", p.handle.(*handle).infos)
	chosen, before = l.choice()
	slices.Sort(before.GonePods)
	if !slices.Equal(before.GoneNodes, []int{number["used"]}) || len(before.GonePods) != 3 || len(before.Nodes) != 1 || before.Nodes[0].Number != number["used"] {
		t.Fatalf("%+v; expected another node with the number of the one that is gone", before)
	}
	if chosen.By != "kube-scheduler" {
		t.Fatalf("%+v; expected that other plugins outvoted the policy", chosen)
	}
}

func TestALearnerThatComesBackIsToldAllAnew(t *testing.T) {
	infos := twoNodes()
	p, l := learning(t, infos)
	cycle, pod := p.place(t, "a", "", infos)
	l.choice()
	l.talks.Close()
	eventually(t, "a learner that is gone", func() bool { return p.sender.link.Load() == nil })
	p.PostBind(context.Background(), cycle, pod, "empty") // of which nobody hears
	for i := range 7 {
		p.place(t, fmt.Sprint("away-", i), "", infos)
	}
	l.accept()
	eventually(t, "a learner that is known", func() bool { return p.sender.link.Load() != nil })
	p.place(t, "b", "", infos)
	chosen, before := l.choice()
	if chosen.Pod.Name != "b" || chosen.Lost != 7 || len(before.Nodes) != 2 || len(before.Pods) != 1 {
		t.Fatalf("%+v after %+v; expected b, all of the cluster, and 7 lost", chosen, before)
	}
}

func TestALearnerThatDoesNotListenDelaysNothingAndHearsOfALaterChoiceAllThatChanged(t *testing.T) {
	infos := madeNodes(300, 2, false, rand.New(rand.NewPCG(1, 2)))
	p, l := learning(t, infos)
	type bound struct {
		cycle fwk.CycleState
		pod   *v1.Pod
	}
	var later []bound
	for i := range queueLimit + 3000 { // nobody reads: what fits goes to the socket, the rest waits or is lost
		cycle, pod := p.place(t, fmt.Sprint("pod-", i), "", infos)
		infos[i%300].AddPodInfo(podInfo(madePod(fmt.Sprint("theirs-", i), "app", 1, 1)))
		later = append(later, bound{cycle, pod})
		if len(later) > 500 {
			p.PostBind(context.Background(), later[0].cycle, later[0].pod, "")
			later = later[1:]
		}
	}
	if p.sender.lost == 0 {
		t.Fatal("nothing was lost")
	}
	for _, each := range later {
		p.PostBind(context.Background(), each.cycle, each.pod, "")
	}
	sent, lost, binds, pods, last := 0, 0, 0, 0, message{}
	count := func() {
		switch heard := l.hear(); heard.Type {
		case "changes":
			pods += len(heard.Pods)
		case "bind":
			binds++
		case "choice":
			sent, lost, last = sent+1, lost+heard.Lost, heard
		}
	}
	for to := p.sender.link.Load(); len(to.queue) > 0; {
		count()
	}
	p.place(t, "last", "", infos)
	for last.Pod.Name != "last" {
		count()
	}
	if last.Lost == 0 || sent+lost != queueLimit+3001 || binds != sent-1 {
		t.Errorf("%d sent, %d lost, %d binds; expected %d choices, and a bind for each that was sent but the last", sent, lost, binds, queueLimit+3001)
	}
	all := 0
	for _, info := range infos {
		all += len(info.GetPods())
	}
	if pods != all {
		t.Errorf("%d pods were told; expected all %d that are there", pods, all)
	}
}

func TestWhereALearnerSaysSoAnotherNodeIsTaken(t *testing.T) {
	infos := twoNodes()
	full := framework.NewNodeInfo(madePod("much", "app", 3500, 15000))
	full.SetNode(madeNode("full", 4000, 16))
	infos = append(infos, full)
	p, l := learning(t, infos)
	go func() { _, _ = io.Copy(io.Discard, l.talks) }()
	share := func(said string) map[string]float64 {
		t.Helper()
		if said != "" {
			before := p.sender.link.Load().explore.Load()
			fmt.Fprintln(l.talks, said)
			eventually(t, said, func() bool { return p.sender.link.Load().explore.Load() != before })
		}
		counts := map[string]float64{}
		for i := range 2000 {
			cycle, pod := p.place(t, fmt.Sprint("p-", i), "", infos)
			counts[pod.Spec.NodeName]++
			p.Unreserve(context.Background(), cycle, pod, "")
		}
		for name := range counts {
			counts[name] /= 2000
		}
		return counts
	}
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.05 } // four standard deviations of 2,000
	if got := share(""); got["empty"] < 1 {
		t.Errorf("%v; expected the best node alone", got)
	}
	if got := share(`{"type": "explore", "by": "any", "chance": 0.3}`); !near(got["empty"], 0.8) || !near(got["full"], 0.1) {
		t.Errorf("%v; expected a tenth for each other node", got)
	}
	if got := share(`{"type": "explore", "by": "least-requested", "chance": 1}`); got["empty"] < 1 {
		t.Errorf("%v; expected the emptiest node", got)
	}
	// least-allocated gives (50 * 3900/4000 + 50 * 16256/16384) = 98.4 to the empty node, and less by more than 20 to others.
	if got := share(`{"type": "explore", "by": "softmax", "chance": 1}`); got["empty"] < 0.99 {
		t.Errorf("%v; expected samples by the scores", got)
	}
}

func TestASampleIsOfTheSoftmaxOverNodes(t *testing.T) {
	l := newSender("")
	to := &link{}
	to.explore.Store(&explore{bySoftmax, 1})
	l.link.Store(to)
	// Two choices: one of a single node with a score of ln 3, one of two nodes with 0: chances 3/5, and 1/5 each.
	v := &view{feasible: 3, chosen: []float64{1, 2}, kindOf: []int32{0, 1}, rowChoice: []int32{1, -1, 0, 1}}
	var counts [4]float64
	for range 20000 {
		counts[l.other(v, []float64{math.Log(3), 0})] += 1.0 / 20000
	}
	for row, want := range [4]float64{0.2, 0, 0.6, 0.2} {
		if math.Abs(counts[row]-want) > 0.015 {
			t.Errorf("%v; expected 0.2, 0, 0.6, 0.2", counts)
		}
	}
}
