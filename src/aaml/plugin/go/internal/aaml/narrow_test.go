package aaml

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// theirs are kube-scheduler's own filters, in the order of its default profile, with that profile's arguments.
type theirs []fwk.Plugin

func newTheirs(t *testing.T, handle fwk.Handle, which ...string) (made theirs) {
	t.Helper()
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	args, registry := map[string]runtime.Object{}, plugins.NewInTreeRegistry()
	for _, each := range defaults.Profiles[0].PluginConfig {
		args[each.Name] = each.Args
	}
	for _, name := range which {
		plugin, err := registry[name](t.Context(), args[name], handle)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, plugin)
	}
	return made
}

// preFilter runs their PreFilter for a pod and returns what they wrote, and which of them have nothing to filter.
func (f theirs) preFilter(t *testing.T, pod *v1.Pod, infos []fwk.NodeInfo) (state fwk.CycleState, skip []string) {
	t.Helper()
	state = framework.NewCycleState()
	for _, each := range f {
		if pre, ok := each.(fwk.PreFilterPlugin); ok {
			if _, status := pre.PreFilter(t.Context(), state, pod, infos); status.IsSkip() {
				skip = append(skip, each.Name())
			} else if !status.IsSuccess() {
				t.Fatal(status)
			}
		}
	}
	return state, skip
}

// pass says whether a node passes all their filters.
func (f theirs) pass(t *testing.T, state fwk.CycleState, skip []string, pod *v1.Pod, info fwk.NodeInfo) bool {
	t.Helper()
	for _, each := range f {
		if filter, ok := each.(fwk.FilterPlugin); ok && !slices.Contains(skip, each.Name()) {
			if status := filter.Filter(t.Context(), state, pod, info); !status.IsSuccess() {
				return false
			}
		}
	}
	return true
}

var simpleFilters = []string{names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity, names.NodeResourcesFit}

// strangeNodes are of several zones; some are cordoned, tainted, small or nearly full.
func strangeNodes(n int, rng *rand.Rand) []fwk.NodeInfo {
	infos := madeNodes(n, 8, true, rng)
	for i, info := range infos {
		node := info.Node()
		node.Labels = map[string]string{"zone": fmt.Sprint(rng.IntN(3)), "cores": fmt.Sprint(rng.IntN(64))}
		node.Spec.Unschedulable = rng.IntN(6) == 0
		for _, effect := range []v1.TaintEffect{v1.TaintEffectNoSchedule, v1.TaintEffectNoExecute, v1.TaintEffectPreferNoSchedule} {
			if rng.IntN(6) == 0 {
				node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: fmt.Sprintf("for-%d", rng.IntN(2)), Value: fmt.Sprint(rng.IntN(2)), Effect: effect})
			}
		}
		node.Status.Allocatable[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(rng.IntN(8)), resource.DecimalSI)
		if i%5 == 0 {
			node.Status.Allocatable[v1.ResourcePods] = *resource.NewQuantity(int64(rng.IntN(12)), resource.DecimalSI)
		}
		info.(*framework.NodeInfo).SetNode(node)
	}
	return infos
}

// strangePod asks for anything, zero and what no node has included, selects nodes and tolerates taints, or does not.
func strangePod(rng *rand.Rand) *v1.Pod {
	pod := madePod("waits", "app", []int64{0, 100, 4000, 16000, 64000}[rng.IntN(5)], []int64{0, 64, 30000, 200000}[rng.IntN(4)])
	if rng.IntN(3) == 0 {
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(rng.IntN(8)), resource.DecimalSI)
	}
	if rng.IntN(4) == 0 {
		pod.Spec.NodeSelector = map[string]string{"zone": fmt.Sprint(rng.IntN(4))}
	}
	if rng.IntN(4) == 0 {
		term := v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: "cores", Operator: v1.NodeSelectorOpGt, Values: []string{"30"}}}}
		if rng.IntN(2) == 0 {
			term = v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"node-3", "node-7"}}}}
		}
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{term}}}}
	}
	for range rng.IntN(3) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, []v1.Toleration{
			{Operator: v1.TolerationOpExists}, {Key: "for-0", Operator: v1.TolerationOpExists}, {Key: "for-1", Value: "1"},
			{Key: v1.TaintNodeUnschedulable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule},
			{Key: "for-0", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute},
		}[rng.IntN(5)])
	}
	return pod
}

func TestTheNodesOfASimplePodAreThoseThatKubeSchedulersFiltersLeave(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	left := 0
	for range 60 {
		infos := strangeNodes(25, rng)
		p := started(t, `{"candidates": 8}`, infos)
		filters := newTheirs(t, p.handle, simpleFilters...)
		p.cluster.follow(infos)
		for range 20 {
			pod := strangePod(rng)
			state, skip := filters.preFilter(t, pod, infos)
			screen := p.simple(state, pod)
			if screen == nil {
				t.Fatalf("%+v is not simple", pod.Spec)
			}
			for row, info := range infos {
				want := filters.pass(t, state, skip, pod, info)
				if got := screen.passes(p.cluster, row); got != want {
					t.Fatalf("%v; expected %v: pod %+v on %+v", got, want, pod.Spec, info.Node())
				}
				if want {
					left++
				}
			}
		}
	}
	if left < 2000 {
		t.Errorf("only %d nodes pass", left)
	}
}

func TestAPodWithOtherFiltersIsNotSimple(t *testing.T) {
	infos := twoNodes()
	p := started(t, `{"candidates": 8}`, infos)
	filters := newTheirs(t, p.handle, append(slices.Clone(simpleFilters), names.NodePorts, names.PodTopologySpread, names.InterPodAffinity, names.NodeDeclaredFeatures)...)
	term := []v1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{}}}
	for what, change := range map[string]func(pod *v1.Pod){
		"": func(*v1.Pod) {},
		"a secret": func(pod *v1.Pod) {
			pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{}}}}
		},
		"a soft spread": func(pod *v1.Pod) { pod.Spec.TopologySpreadConstraints = spread(v1.ScheduleAnyway) },
		"a claim": func(pod *v1.Pod) {
			pod.Spec.Volumes = []v1.Volume{{VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{}}}}
		},
		"a device": func(pod *v1.Pod) { pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu"}} },
		"a port": func(pod *v1.Pod) {
			pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80, ContainerPort: 80}}
		},
		"a hard spread": func(pod *v1.Pod) { pod.Spec.TopologySpreadConstraints = spread(v1.DoNotSchedule) },
		"neighbours": func(pod *v1.Pod) {
			pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
		},
		"no neighbours": func(pod *v1.Pod) {
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
		},
		"a resource": func(pod *v1.Pod) {
			pod.Spec.Containers[0].Resources.Requests["example.com/nic"] = resource.MustParse("1")
		},
		"a group":   func(pod *v1.Pod) { pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{} },
		"a nominee": func(pod *v1.Pod) { pod.Status.NominatedNodeName = "used" },
	} {
		pod := madePod("waits", "app", 100, 64)
		change(pod)
		state, _ := filters.preFilter(t, pod, infos)
		expected := what == "" || what == "a secret" || what == "a soft spread"
		if simple := p.simple(state, pod) != nil; simple != expected {
			t.Errorf("%q: %v; expected %v", what, simple, expected)
		}
	}
	lonely := madePod("runs", "app", 100, 64)
	lonely.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: term}}
	infos[1].Node().Labels = map[string]string{"zone": "a"}
	infos[1].AddPodInfo(podInfo(lonely))
	pod := madePod("waits", "app", 100, 64)
	if state, _ := filters.preFilter(t, pod, infos); p.simple(state, pod) != nil {
		t.Error("a pod is simple that another one keeps away")
	}
	if p.simple(framework.NewCycleState(), madePod("waits", "app", 100, 64)) != nil {
		t.Error("a pod is simple before the other plugins had their say")
	}
}

func spread(otherwise v1.UnsatisfiableConstraintAction) []v1.TopologySpreadConstraint {
	return []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: otherwise, LabelSelector: &metav1.LabelSelector{}}}
}

// narrowing returns a plugin that hands on the best of many nodes, a pod, and what is kept of it until it is handed on.
func narrowing(t *testing.T) (*Plugin, *v1.Pod, fwk.CycleState) {
	t.Helper()
	infos := madeNodes(40, 4, true, rand.New(rand.NewPCG(9, 10)))
	p := started(t, fmt.Sprintf(`{"weightsFile": %q, "candidates": 5}`, leastAllocated(t)), infos)
	pod := madePod("waits", "app", 100, 64)
	state, _ := newTheirs(t, p.handle, names.NodeResourcesFit).preFilter(t, pod, infos)
	return p, pod, state
}

func TestKubeSchedulerIsHandedTheBestNodesAndTakesTheBest(t *testing.T) {
	p, pod, state := narrowing(t)
	few, status := p.PreFilter(t.Context(), state, pod, p.handle.(*handle).infos)
	if !status.IsSuccess() || few.NodeNames.Len() != 5 {
		t.Fatal(few, status)
	}
	want := p.best(t, 100) // the choice among all nodes
	if !few.NodeNames.Has(want) {
		t.Fatalf("%v; expected %s among them", few.NodeNames, want)
	}
	var left []fwk.NodeInfo
	for _, info := range p.handle.(*handle).infos {
		if few.NodeNames.Has(info.Node().Name) {
			left = append(left, info)
			if !p.Filter(t.Context(), state, pod, info).IsSuccess() {
				t.Errorf("%s is filtered out", info.Node().Name)
			}
		}
	}
	if status := p.PreScore(t.Context(), state, pod, left); !status.IsSuccess() {
		t.Fatal(status)
	}
	for _, info := range left {
		score, _ := p.Score(t.Context(), state, pod, info)
		if (score == best) != (info.Node().Name == want) {
			t.Errorf("%s scores %d; expected %s to be the best", info.Node().Name, score, want)
		}
	}
	if p.Reserve(t.Context(), state, pod, want); p.widened {
		t.Error("nothing refused the best node")
	}
}

func TestAPodThatFitsNowhereIsLeftToKubeScheduler(t *testing.T) {
	p, _, state := narrowing(t)
	if few, status := p.PreFilter(t.Context(), state, madePod("waits", "app", 1_000_000, 64), p.handle.(*handle).infos); few != nil || !status.IsSkip() {
		t.Error(few, status)
	}
	if _, status := p.PostFilter(t.Context(), state, nil, nil); status.Code() != fwk.Unschedulable {
		t.Error(status) // preemption comes next
	}
}

// activating takes note of pods that are to be tried again.
type activating struct {
	*handle
	pods []string
}

func (a *activating) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	for name := range pods {
		a.pods = append(a.pods, name)
	}
}

func TestAFilterThatIsNotKnownEndsTheNarrowing(t *testing.T) {
	for _, refused := range []string{"the best", "all"} {
		p, pod, state := narrowing(t)
		infos, again := p.handle.(*handle).infos, &activating{handle: p.handle.(*handle)}
		few, _ := p.PreFilter(t.Context(), state, pod, infos)
		want := p.best(t, 100)
		p.handle = again
		if refused == "all" {
			if _, status := p.PostFilter(t.Context(), state, pod, nil); status.Code() != fwk.UnschedulableAndUnresolvable {
				t.Error(status) // so nothing is preempted
			}
			if !slices.Equal(again.pods, []string{"waits"}) {
				t.Errorf("%v are tried again", again.pods)
			}
		} else {
			few.NodeNames.Delete(want)
			other, _ := few.NodeNames.PopAny()
			p.Reserve(t.Context(), state, pod, other)
		}
		if few, status := p.PreFilter(t.Context(), state, pod, infos); few != nil || !status.IsSkip() {
			t.Errorf("%s: %v are handed on", refused, few)
		}
	}
}
