package aaml

import (
	"fmt"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// What the tests and benchmarks play with: made-up networks, nodes and pods.

func madeNetwork(encoder, head string, rng *rand.Rand) *network {
	const width = 32
	l := layers{map[string][][]float32{}, map[string][]float32{}}
	layer := func(weight, bias string, in, out int) {
		rows := make([][]float32, out)
		for o := range rows {
			rows[o] = make([]float32, in)
			for i := range rows[o] {
				rows[o][i] = float32(rng.NormFloat64() * 0.2)
			}
		}
		l.Weights[weight] = rows
		if bias != "" {
			l.Biases[bias] = rows[0][:1:1]
			for range out - 1 {
				l.Biases[bias] = append(l.Biases[bias], float32(rng.NormFloat64()*0.1))
			}
		}
	}
	context := width + pairWidth + podWidth
	if encoder == "mlp" {
		layer("encoder.first.weight", "encoder.first.bias", nodeWidth, width)
		layer("encoder.second.weight", "encoder.second.bias", width, width)
	} else {
		for i, in := range []int{nodeWidth + 1, width, width} {
			layer(fmt.Sprintf("encoder.layers.%d.lin.weight", i), fmt.Sprintf("encoder.layers.%d.bias", i), in, width)
		}
	}
	layer("scorer.embedding.weight", "scorer.embedding.bias", width, width)
	layer("scorer.pairs.weight", "", pairWidth, width)
	layer("scorer.context.weight", "", context, width)
	layer("scorer.hidden.weight", "scorer.hidden.bias", width, width)
	layer("scorer.out.weight", "scorer.out.bias", width, 1)
	layer("scorer.direct.weight", "", pairWidth, 1)
	if head == "q" {
		layer("value.hidden.weight", "value.hidden.bias", context, width)
		layer("value.out.weight", "value.out.bias", width, 1)
	}
	n, err := newNetwork(encoder, head, width, nodeWidth, pairWidth, podWidth, l)
	if err != nil {
		panic(err)
	}
	return n
}

var quiet = klog.Background()

func podInfo(pod *v1.Pod) fwk.PodInfo {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		panic(err)
	}
	return info
}

func madeNode(name string, cpu, memoryGi int64) *v1.Node {
	amounts := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memoryGi<<30, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(110, resource.DecimalSI),
	}
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: amounts}}
}

func madePod(name, owner string, cpu, memoryMi int64) *v1.Pod {
	yes := true
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "default", UID: types.UID(name),
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: &yes}},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(memoryMi<<20, resource.BinarySI),
		}}}}},
	}
}

// madeNodes returns nodes of four sizes, with pods of eight sizes or, where they are to be unlike, of sizes without end.
func madeNodes(n, podsPerNode int, unlike bool, rng *rand.Rand) []fwk.NodeInfo {
	infos := make([]fwk.NodeInfo, n)
	for i := range infos {
		size := int64(rng.IntN(4) + 1)
		var pods []*v1.Pod
		for p := range rng.IntN(2*podsPerNode + 1) {
			cpu, memory := int64(100<<rng.IntN(3)), int64(128<<rng.IntN(3))
			if unlike {
				cpu, memory = int64(rng.IntN(500)+1), int64(rng.IntN(1000)+1)
			}
			pods = append(pods, madePod(fmt.Sprintf("n%d-p%d", i, p), fmt.Sprintf("app-%d", rng.IntN(50)), cpu, memory))
		}
		info := framework.NewNodeInfo(pods...)
		info.SetNode(madeNode(fmt.Sprintf("node-%d", i), 8000*size, 32*size))
		infos[i] = info
	}
	return infos
}
