package aaml

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// sharing returns a pod that asks for a share of a GPU; where it runs, on the devices that are named.
func sharing(name, milli, devices string) *v1.Pod {
	pod := madePod(name, "app", 100, 64)
	pod.Annotations = map[string]string{gpuMilli: milli}
	if devices != "" {
		pod.Annotations[gpuIndex] = devices
	}
	return pod
}

// twoDevices returns a node with two GPUs of a model, and its pods.
func twoDevices(pods ...*v1.Pod) fwk.NodeInfo {
	node := madeNode("gpus", 32000, 128)
	node.Status.Allocatable[gpuCount] = *resource.NewQuantity(2, resource.DecimalSI)
	node.Labels = map[string]string{gpuModel: "T4"}
	info := framework.NewNodeInfo(pods...)
	info.SetNode(node)
	return info
}

// passes says what the filter makes of a pod on a node.
func (p *Plugin) passes(pod *v1.Pod, info fwk.NodeInfo) fwk.Code {
	cycle := framework.NewCycleState()
	if _, status := p.PreFilter(nil, cycle, pod, nil); status.IsSkip() {
		return fwk.Skip
	}
	return p.Filter(nil, cycle, pod, info).Code()
}

func TestAShareGoesWhereADeviceHasSoMuchLeft(t *testing.T) {
	info := twoDevices(sharing("a", "700", "0"), sharing("b", "400", "1"))
	p := started(t, `{}`, []fwk.NodeInfo{info})
	other, whole, plain := sharing("other", "100", ""), sharing("whole", "1000", ""), madePod("plain", "app", 100, 64)
	other.Annotations[gpuModel] = "V100M16|G2"
	bare := framework.NewNodeInfo()
	bare.SetNode(madeNode("bare", 32000, 128))
	for _, each := range []struct {
		pod  *v1.Pod
		on   fwk.NodeInfo
		code fwk.Code
	}{
		{sharing("600", "600", ""), info, fwk.Success},
		{sharing("601", "601", ""), info, fwk.Unschedulable},
		{whole, info, fwk.Unschedulable},
		{whole, twoDevices(), fwk.Success},
		{other, info, fwk.UnschedulableAndUnresolvable},
		{whole, bare, fwk.UnschedulableAndUnresolvable},
		{plain, bare, fwk.Skip},
	} {
		if code := p.passes(each.pod, each.on); code != each.code {
			t.Errorf("%s on %s: %v, expected %v", each.pod.Name, each.on.Node().Name, code, each.code)
		}
	}
}

func TestDevicesAreAPodsFromItsReservationUntilItIsUndone(t *testing.T) {
	before := twoDevices(sharing("runs", "400", "1"))
	p := started(t, `{}`, []fwk.NodeInfo{before})
	pod := sharing("waits", "500", "")
	p.Reserve(t.Context(), framework.NewCycleState(), pod, "gpus") // the second device fits best
	alone := twoDevices(pod)                                       // the other pod ended; a guess would be the first device
	if free := freeDevices(alone, &p.held); !slices.Equal(free, []int64{1000, 500}) {
		t.Fatal(free)
	}
	if annotations := bindingOf(pod, "gpus", p.held.of(pod.UID)).Annotations; annotations[gpuIndex] != "1" {
		t.Fatal(annotations)
	}
	p.Unreserve(t.Context(), framework.NewCycleState(), pod, "gpus")
	if free := freeDevices(alone, &p.held); !slices.Equal(free, []int64{500, 1000}) {
		t.Fatal(free)
	}
	if status := p.Bind(t.Context(), framework.NewCycleState(), pod, "gpus"); !status.IsSkip() {
		t.Fatal("a pod without devices is left to the next bind plugin")
	}
}

func TestSeveralDevicesAreNamedInOneAnnotation(t *testing.T) {
	if binding := bindingOf(madePod("a", "app", 1, 1), "gpus", []int{2, 3}); binding.Annotations[gpuIndex] != "2-3" || binding.Target.Name != "gpus" {
		t.Fatal(binding)
	}
}

func TestDevicesAreForgottenOfPodsThatAreGoneOrHaveTheAnnotation(t *testing.T) {
	h := held{}
	for _, name := range []string{"bound", "gone", "waits"} {
		h.keep(types.UID(name), []int{0})
	}
	h.most = 3
	h.sweep([]fwk.NodeInfo{twoDevices(sharing("bound", "500", "0"), sharing("waits", "500", ""))})
	if h.of("bound") != nil || h.of("gone") != nil || h.of("waits") == nil {
		t.Fatal(h.devices)
	}
}

func TestFGDTakesTheDeviceWhoseRestIsOfUse(t *testing.T) {
	// Expected are shares of 300. A pod with 500 leaves 100 of the second device, which are of use to none of them, and 500
	// of the first one, which are. Best fit takes the second.
	policy, err := parseWeights(weightsOf(`{"kind":"devices","name":"fgd","features":{"version":1},"expected_pods":` +
		`{"population":1,"kinds":[{"cpu_milli":100,"gpu_milli":300,"gpu_count":1,"models":[],"frequency":1}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	info := twoDevices(sharing("runs", "400", "1"))
	p := started(t, `{}`, []fwk.NodeInfo{info})
	pod := sharing("waits", "500", "")
	seen, request := read(info, &p.held), requestBy(&framework.PodInfo{Pod: pod})
	if device := policy.scorer.(*deviceScorer).device(&seen, &request); device != 0 {
		t.Fatal(device)
	}
	if fit := chooseDevices(freeDevices(info, &p.held), request.gpu); !slices.Equal(fit, []int{1}) {
		t.Fatal(fit)
	}
	p.weights.current.Store(policy)
	p.Reserve(t.Context(), framework.NewCycleState(), pod, "gpus")
	if devices := p.held.of(pod.UID); !slices.Equal(devices, []int{0}) {
		t.Fatal(devices)
	}
}
