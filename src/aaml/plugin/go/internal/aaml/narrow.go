package aaml

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	gates "k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// kube-scheduler filters every node and asks every score plugin about each: at 5,000 nodes that takes ten times as long as
// the policy. So of a pod whose filters are simple the plugin finds the feasible nodes itself, decides in PreFilter, and
// hands kube-scheduler the policy's best nodes alone. It filters these as ever; all pass, and the best one is chosen.

const (
	narrowedKey = Name + "/narrowed"
	fitRan      = "PreFilter" + names.NodeResourcesFit // written for every pod: the others' PreFilter came before this one
	affinityRan = "PreFilter" + names.NodeAffinity
)

var _ fwk.PostFilterPlugin = &Plugin{}

// filtersBy are what kube-scheduler's plugins write in PreFilter for pods that they filter by, and for no others.
var filtersBy = []fwk.StateKey{
	"PreFilter" + names.NodePorts, "PreFilter" + names.VolumeRestrictions, "PreFilter" + names.VolumeZone,
	"PreFilter" + names.PodTopologySpread, "PreFilter" + names.InterPodAffinity, "PreFilter" + names.NodeDeclaredFeatures,
}

// screen is a pod whose filters are simple: what it asks for, which nodes it selects, and which taints it tolerates.
type screen struct {
	pod                  *v1.Pod
	cpu, memory, storage int64
	selects              bool
	selected             nodeaffinity.RequiredNodeAffinity
	comparing            bool // tolerations may compare numbers
}

// simple returns the screen of a pod, nil where a filter is at work that the plugin does not compute.
func (p *Plugin) simple(state fwk.CycleState, pod *v1.Pod) *screen {
	spec := &pod.Spec
	if pod.Status.NominatedNodeName != "" || grouped(spec) || len(spec.ResourceClaims) > 0 {
		return nil
	}
	if slices.ContainsFunc(p.handle.Extenders(), func(e fwk.Extender) bool { return e.IsInterested(pod) }) {
		return nil
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; v.ConfigMap == nil && v.Secret == nil && v.Projected == nil && v.DownwardAPI == nil && v.EmptyDir == nil {
			return nil
		}
	}
	if _, err := state.Read(fitRan); err != nil {
		return nil
	}
	for _, key := range filtersBy {
		if _, err := state.Read(key); err == nil {
			return nil
		}
	}
	asked := podResources(pod)
	for _, amount := range asked.GetScalarResources() {
		if amount > 0 {
			return nil
		}
	}
	s := &screen{
		pod: pod, cpu: asked.GetMilliCPU(), memory: asked.GetMemory(), storage: asked.GetEphemeralStorage(),
		selects:   spec.NodeSelector != nil || spec.Affinity != nil && spec.Affinity.NodeAffinity != nil && spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil,
		comparing: utilfeature.DefaultFeatureGate.Enabled(gates.TaintTolerationComparisonOperators),
	}
	if s.selects {
		s.selected = nodeaffinity.GetRequiredNodeAffinity(pod)
	} else if _, err := state.Read(affinityRan); err == nil {
		return nil // the profile selects nodes
	}
	return s
}

// mark marks the feasible nodes.
func (s *screen) mark(c *cluster, mask []bool) (count int) {
	for row := range mask {
		if s.passes(c, row) {
			mask[row] = true
			count++
		}
	}
	return count
}

func (s *screen) passes(c *cluster, row int) bool {
	f := &c.facts[c.slots[row]]
	if f.usedPods+1 > f.pods || s.cpu > 0 && s.cpu > f.cpu-f.usedCPU || s.memory > 0 && s.memory > f.memory-f.usedMemory {
		return false
	}
	info := c.infos[row]
	if s.storage > 0 && s.storage > info.GetAllocatable().GetEphemeralStorage()-info.GetRequested().GetEphemeralStorage() {
		return false
	}
	if c.closed[row] && !s.tolerates(info.Node()) {
		return false
	}
	if s.selects {
		match, _ := s.selected.Match(info.Node()) // kube-scheduler passes over what cannot be parsed, too
		return match
	}
	return true
}

var cordon = v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}

func (s *screen) tolerates(node *v1.Node) bool {
	logger, tolerations := klog.Background(), s.pod.Spec.Tolerations
	if node.Spec.Unschedulable && !corev1.TolerationsTolerateTaint(logger, tolerations, &cordon, s.comparing) {
		return false
	}
	_, found := corev1.FindMatchingUntoleratedTaint(logger, node.Spec.Taints, tolerations, keepsOut, s.comparing)
	return !found
}

// closed says whether a node is for pods only that tolerate something.
func closed(node *v1.Node) bool {
	for i := range node.Spec.Taints {
		if keepsOut(&node.Spec.Taints[i]) {
			return true
		}
	}
	return node.Spec.Unschedulable
}

func keepsOut(taint *v1.Taint) bool {
	return taint.Effect == v1.TaintEffectNoSchedule || taint.Effect == v1.TaintEffectNoExecute
}

// narrow decides for a pod whose filters are simple, and returns the best nodes; nil where all are to be filtered.
func (p *Plugin) narrow(state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) *fwk.PreFilterResult {
	start := time.Now()
	policy := p.weights.current.Load()
	if p.args.Candidates == 0 || p.widened || policy == nil || policy.carried != nil {
		return nil
	}
	screen := p.simple(state, pod)
	if screen == nil {
		return nil
	}
	made, reason := p.decide(policy, infos, pod, screen.mark, start.Add(p.args.Deadline.Duration))
	if reason != "" || len(made) == 0 {
		return nil // as it would be without: PreScore tries again, or no node is feasible
	}
	names := sets.New[string]()
	for name, grade := range made {
		if int(grade) > best-p.args.Candidates {
			if len(p.handle.NominatedPodsForNode(name)) > 0 {
				return nil // these pods take room that is not taken yet
			}
			names.Insert(name)
		}
	}
	state.Write(narrowedKey, made)
	p.sender.decided(p.sender.begin(state, p.view.marked(infos)), made, policy)
	decisions.Inc()
	narrowed.Inc()
	duration.Observe(time.Since(start).Seconds())
	return &fwk.PreFilterResult{NodeNames: names}
}

// chose notes which node a pod got. Where it is not the best one of those that were handed to kube-scheduler, a filter is at
// work that the plugin does not know: from then on all nodes are filtered.
func (p *Plugin) chose(state fwk.CycleState, pod *v1.Pod, node string) {
	if data, err := state.Read(narrowedKey); err == nil && data.(decision)[node] != best {
		p.widen(pod)
	}
}

func (p *Plugin) widen(pod *v1.Pod) {
	if !p.widened {
		p.widened = true
		klog.InfoS("AAML: a filter that the plugin does not know refused the best node; from now on all nodes are filtered", "pod", klog.KObj(pod))
	}
}

// PostFilter sees to it that a pod that was handed too few nodes is tried again at once with all of them, and that nothing is
// preempted for it before.
func (p *Plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	if _, err := state.Read(narrowedKey); err != nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	p.widen(pod)
	p.handle.Activate(klog.FromContext(ctx), map[string]*v1.Pod{pod.Name: pod})
	return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "the plugin chose among too few nodes; all are tried next")
}
