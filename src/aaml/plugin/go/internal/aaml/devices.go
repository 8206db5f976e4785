package aaml

import (
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

const (
	gpuCount    = "alibabacloud.com/gpu-count"
	gpuMilli    = "alibabacloud.com/gpu-milli"
	gpuModel    = "alibabacloud.com/gpu-card-model"
	gpuIndex    = "alibabacloud.com/gpu-index"
	nvidiaGPU   = "nvidia.com/gpu"
	nvidiaModel = "nvidia.com/gpu.product"
	deviceMilli = 1000
	mostDevices = 1024
)

// gpuRequest is what a pod asks for of GPUs: how many devices, and thousandths of each.
type gpuRequest struct {
	count, milli int64
	models       bool   // it insists on a model
	named        string // the models, between bars
}

// share says whether it is a part of one device.
func (g *gpuRequest) share() bool { return g.count == 1 && 0 < g.milli && g.milli < deviceMilli }

// kind is what GPU clustering tells apart: 0 for no GPU, 1 for a share or a request that reserves nothing, else 1 more than
// the whole devices.
func (g *gpuRequest) kind() int64 {
	switch {
	case g.count == 0:
		return 0
	case g.count == 1 && g.milli < deviceMilli:
		return 1
	}
	return 1 + g.count
}

// group is that of a scorer of devices: no GPU, a share, a whole device, several.
func (g *gpuRequest) group() int {
	switch {
	case g.milli <= 0:
		return 0
	case g.share():
		return 1
	case g.count == 1:
		return 2
	}
	return 3
}

// accepts says whether devices of the model will do.
func (g *gpuRequest) accepts(model string) bool {
	return !g.models || model != "" && slices.Contains(strings.Split(g.named, "|"), model)
}

// gpuOf reads a pod's annotations for GPU sharing, or else the whole devices that it asks for as nvidia.com/gpu.
func gpuOf(info fwk.PodInfo) gpuRequest {
	pod := info.GetPod()
	counted, hasCount := pod.Annotations[gpuCount]
	share, hasMilli := pod.Annotations[gpuMilli]
	named := pod.Annotations[gpuModel]
	models := strings.Trim(named, "|") != ""
	if !hasCount && !hasMilli {
		whole := min(info.CalculateResource().Resource.GetScalarResources()[nvidiaGPU], mostDevices+1)
		if whole == 0 {
			return gpuRequest{}
		}
		return gpuRequest{whole, deviceMilli, models, named}
	}
	asked := gpuRequest{number(counted, hasCount, 1), number(share, hasMilli, deviceMilli), models, named}
	asked.count = min(asked.count, mostDevices+1)
	if asked.count == 0 {
		return gpuRequest{}
	}
	if asked.count > 1 && asked.milli > 0 {
		asked.milli = deviceMilli
	}
	return asked
}

func number(text string, has bool, otherwise int64) int64 {
	if !has {
		return otherwise
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil || value < 0 {
		return 0
	}
	return value
}

// freeDevices returns the free thousandths of a node's GPUs: pods hold the devices that their annotation names, or that
// were chosen for them right now; the others, about which nobody says anything, take the best fitting ones in the order of
// their creation.
func freeDevices(info fwk.NodeInfo, chosen *held) []int64 {
	offered := info.GetAllocatable().GetScalarResources()
	count, ok := offered[gpuCount]
	if !ok {
		count = offered[nvidiaGPU]
	}
	if count = min(count, mostDevices); count <= 0 {
		return nil
	}
	free := make([]int64, count)
	for i := range free {
		free[i] = deviceMilli
	}
	var guessed []fwk.PodInfo
	for _, pod := range info.GetPods() {
		asked := gpuOf(pod)
		if asked.milli == 0 {
			continue
		}
		devices := namedDevices(pod.GetPod(), asked, len(free))
		if devices == nil {
			if devices = chosen.of(pod.GetPod().UID); len(devices) == 0 || slices.Max(devices) >= len(free) {
				devices = nil
			}
		}
		if devices != nil {
			hold(free, devices, asked.milli)
		} else {
			guessed = append(guessed, pod)
		}
	}
	slices.SortStableFunc(guessed, func(left, right fwk.PodInfo) int {
		a, b := left.GetPod(), right.GetPod()
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	for _, pod := range guessed {
		asked := gpuOf(pod)
		hold(free, chooseDevices(free, asked), asked.milli)
	}
	for i := range free {
		free[i] = max(free[i], 0)
	}
	return free
}

func hold(free []int64, devices []int, milli int64) {
	for _, device := range devices {
		free[device] -= milli
	}
}

// namedDevices returns the devices that a pod's annotation names ("2-3"), nil where it names none that it can have.
func namedDevices(pod *v1.Pod, asked gpuRequest, count int) []int {
	parts := strings.Split(pod.Annotations[gpuIndex], "-")
	if int64(len(parts)) != asked.count || asked.milli > deviceMilli {
		return nil
	}
	devices := make([]int, 0, len(parts))
	for _, part := range parts {
		device, err := strconv.ParseUint(part, 10, 30)
		if err != nil || int(device) >= count || slices.Contains(devices, int(device)) {
			return nil
		}
		devices = append(devices, int(device))
	}
	return devices
}

// chooseDevices returns the best fitting device for a share, the first free ones for whole devices, nil for neither.
func chooseDevices(free []int64, asked gpuRequest) []int {
	if asked.milli <= 0 || asked.milli > deviceMilli {
		return nil
	}
	if asked.count == 1 && asked.milli < deviceMilli {
		best := -1
		for i, milli := range free {
			if milli >= asked.milli && (best < 0 || milli < free[best]) {
				best = i
			}
		}
		if best < 0 {
			return nil
		}
		return []int{best}
	}
	var whole []int
	for i, milli := range free {
		if milli >= deviceMilli && int64(len(whole)) < asked.count {
			whole = append(whole, i)
		}
	}
	if int64(len(whole)) < asked.count {
		return nil
	}
	return whole
}
