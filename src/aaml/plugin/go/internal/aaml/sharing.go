package aaml

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// GPUs that pods share by annotation, of which kube-scheduler itself knows nothing: a filter for the devices, a choice of
// them as soon as a pod has a node, and the annotation that names them, written with the bind.

const (
	gpuKey    = Name + "/gpu"
	mostSwept = 1024 // pods whose devices are kept before the first look for those that need it no more
)

var (
	_ fwk.PreFilterPlugin   = &Plugin{}
	_ fwk.FilterPlugin      = &Plugin{}
	_ fwk.EnqueueExtensions = &Plugin{}
	_ fwk.BindPlugin        = &Plugin{}
)

// Clone returns the request itself.
func (g *gpuRequest) Clone() fwk.StateData { return g }

// held are the devices of pods whose annotation is not seen yet: those that are about to be bound.
type held struct {
	lock    sync.RWMutex
	devices map[types.UID][]int
	most    int
}

func (h *held) of(uid types.UID) []int {
	if h == nil {
		return nil
	}
	h.lock.RLock()
	defer h.lock.RUnlock()
	return h.devices[uid]
}

func (h *held) keep(uid types.UID, devices []int) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.devices == nil {
		h.devices, h.most = map[types.UID][]int{}, mostSwept
	}
	h.devices[uid] = devices
}

func (h *held) drop(uid types.UID) {
	h.lock.Lock()
	defer h.lock.Unlock()
	delete(h.devices, uid)
}

// sweep forgets pods that are gone or whose annotation is there, once many are kept.
func (h *held) sweep(infos []fwk.NodeInfo) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if h.devices == nil || len(h.devices) < h.most {
		return
	}
	needed := map[types.UID][]int{}
	for _, info := range infos {
		for _, each := range info.GetPods() {
			pod := each.GetPod()
			if devices, ok := h.devices[pod.UID]; ok && pod.Annotations[gpuIndex] == "" {
				needed[pod.UID] = devices
			}
		}
	}
	h.devices, h.most = needed, max(mostSwept, 2*len(needed))
}

// PreFilter reads what a pod asks for of GPUs. Where it is nothing the filter has nothing to do, and the nodes that are
// filtered by others may be few.
func (p *Plugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, infos []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	asked := gpuOf(&framework.PodInfo{Pod: pod})
	if asked.milli <= 0 {
		if few := p.narrow(state, pod, infos); few != nil {
			return few, nil
		}
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(gpuKey, &asked)
	return nil, nil
}

// PreFilterExtensions returns nil: the filter reads a node's pods anew.
func (p *Plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter leaves out nodes whose devices have no room for the pod.
func (p *Plugin) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(gpuKey)
	if err != nil {
		return nil // it asks for no GPU
	}
	asked := data.(*gpuRequest)
	free := freeDevices(info, &p.held)
	if len(free) == 0 || !asked.accepts(modelOf(info.Node())) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) had no GPU of a model that the pod accepts")
	}
	if chooseDevices(free, *asked) == nil {
		return fwk.NewStatus(fwk.Unschedulable, "node(s) had not enough left of their GPUs")
	}
	return nil
}

// EventsToRegister returns what may give a pod that was filtered out a device after all.
func (p *Plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.Update}},
	}, nil
}

// takeDevices chooses the devices of a pod that got a node: that of a share by the score, where it has a say, else the best
// fitting one; whole devices are the first free ones. They are the pod's until Unreserve.
func (p *Plugin) takeDevices(pod *v1.Pod, node string) {
	defer func() {
		if caught := recover(); caught != nil { // the pod goes without the annotation
			klog.ErrorS(fmt.Errorf("%v", caught), "AAML: no devices were chosen", "pod", klog.KObj(pod), "stack", string(debug.Stack()))
		}
	}()
	asked := gpuOf(&framework.PodInfo{Pod: pod})
	if asked.milli <= 0 {
		return
	}
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	info, err := nodes.Get(node)
	if err != nil {
		return
	}
	if infos, err := nodes.List(); err == nil {
		p.held.sweep(infos)
	}
	if slices.ContainsFunc(info.GetPods(), func(each fwk.PodInfo) bool { return each.GetPod().UID == pod.UID }) {
		info = info.Snapshot() // of a group that is scheduled as one: the pod is on the node already
		if err := info.RemovePod(klog.Background(), pod); err != nil {
			return
		}
	}
	devices := chooseDevices(freeDevices(info, &p.held), asked)
	if policy := p.weights.current.Load(); policy != nil {
		if scorer, ok := policy.scorer.(*deviceScorer); ok {
			seen, request := read(info, &p.held), requestBy(&framework.PodInfo{Pod: pod})
			if device := scorer.device(&seen, &request); device >= 0 {
				devices = []int{device}
			}
		}
	}
	if devices != nil {
		p.held.keep(pod.UID, devices)
	}
}

// Bind binds pods that have devices, with the annotation that names them: the API server copies a Binding's annotations to
// the pod, so both are written at once. Other pods are left to the next bind plugin.
func (p *Plugin) Bind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	devices := p.held.of(pod.UID)
	if devices == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	binding := bindingOf(pod, node, devices)
	if cacher := p.handle.APICacher(); cacher != nil {
		finished, err := cacher.BindPod(binding)
		if err == nil {
			err = cacher.WaitOnFinish(ctx, finished)
		}
		return fwk.AsStatus(err)
	}
	return fwk.AsStatus(p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{}))
}

func bindingOf(pod *v1.Pod, node string, devices []int) *v1.Binding {
	names := make([]string, len(devices))
	for i, device := range devices {
		names[i] = strconv.Itoa(device)
	}
	return &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{gpuIndex: strings.Join(names, "-")},
		},
		Target: v1.ObjectReference{Kind: "Node", Name: node},
	}
}
