// Command evict answers which pods the descheduler's HighNodeUtilization would evict, in which order.
//
// It reads one question a line and writes one answer a line, both as JSON. The descheduler's own plugin, default evictor
// and pod evictor decide. There is no API server: the eviction API is played here, disruption budgets included.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	core "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"

	"sigs.k8s.io/descheduler/pkg/api"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	podutil "sigs.k8s.io/descheduler/pkg/descheduler/pod"
	"sigs.k8s.io/descheduler/pkg/features"
	frameworkfake "sigs.k8s.io/descheduler/pkg/framework/fake"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/defaultevictor"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/nodeutilization"
	frameworktypes "sigs.k8s.io/descheduler/pkg/framework/types"
)

const longestLine = 16 << 20

// Question is a cluster at one moment, and what the plugin and the evictor are told.
type Question struct {
	Nodes            []Node                         `json:"nodes"`
	Pods             []Pod                          `json:"pods"`
	Budgets          []Budget                       `json:"budgets"`
	Thresholds       api.ResourceThresholds         `json:"thresholds"`
	NumberOfNodes    int                            `json:"numberOfNodes"`
	EvictionModes    []nodeutilization.EvictionMode `json:"evictionModes"`
	NoEvictionPolicy string                         `json:"noEvictionPolicy"`
	PerNode          *uint                          `json:"maxNoOfPodsToEvictPerNode"`
	Total            *uint                          `json:"maxNoOfPodsToEvictTotal"`
}

// Node is a node that is ready; one with a taint is about to go.
type Node struct {
	Name     string `json:"name"`
	CPUMilli int64  `json:"cpuMilli"`
	Memory   int64  `json:"memory"`
	Pods     int64  `json:"pods"`
	Taint    string `json:"taint"`
}

// Pod is a pod on a node. Limits are its requests where it is guaranteed.
type Pod struct {
	Name        string            `json:"name"`
	Node        string            `json:"node"`
	CPUMilli    int64             `json:"cpuMilli"`
	Memory      int64             `json:"memory"`
	Priority    int32             `json:"priority"`
	Guaranteed  bool              `json:"guaranteed"`
	OwnerKind   string            `json:"ownerKind"`
	Terminating bool              `json:"terminating"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// Budget is a PodDisruptionBudget.
type Budget struct {
	Labels         map[string]string   `json:"labels"`
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
	MinAvailable   *intstr.IntOrString `json:"minAvailable"`
}

// Answer names the evicted pods in their order, or says what went wrong.
type Answer struct {
	Evicted []string `json:"evicted"`
	Error   string   `json:"error,omitempty"`
}

func main() {
	klog.SetLogger(logr.Discard())
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), longestLine)
	encoder := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		answer, err := answered(lines.Bytes())
		if err != nil {
			answer = &Answer{Error: err.Error()}
		}
		if err := encoder.Encode(answer); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func answered(line []byte) (*Answer, error) {
	question := &Question{}
	if err := json.Unmarshal(line, question); err != nil {
		return nil, fmt.Errorf("reading the question: %w", err)
	}
	ctx := klog.NewContext(context.Background(), logr.Discard())
	byNode, pods := map[string][]*v1.Pod{}, map[string]*v1.Pod{}
	for _, each := range question.Pods {
		pod := each.pod()
		byNode[each.Node] = append(byNode[each.Node], pod)
		pods[pod.Name] = pod
	}
	evicted := []string{}
	client := fake.NewClientset()
	client.PrependReactor("create", "pods/eviction", func(action core.Action) (bool, runtime.Object, error) {
		object, is := action.(core.CreateAction).GetObject().(*policy.Eviction)
		if !is {
			return false, nil, nil
		}
		if err := question.refusal(pods, evicted, object.Name); err != nil {
			return true, nil, err
		}
		evicted = append(evicted, object.Name)
		return true, nil, nil
	})
	plugin, err := question.plugin(ctx, client, func(name string, filter podutil.FilterFunc) ([]*v1.Pod, error) {
		found := []*v1.Pod{}
		for _, pod := range byNode[name] {
			if filter == nil || filter(pod) {
				found = append(found, pod)
			}
		}
		return found, nil
	})
	if err != nil {
		return nil, err
	}
	nodes := []*v1.Node{}
	for _, each := range question.Nodes {
		nodes = append(nodes, each.node())
	}
	if status := plugin.Balance(ctx, nodes); status != nil && status.Err != nil {
		return nil, status.Err
	}
	return &Answer{Evicted: evicted}, nil
}

func (q *Question) plugin(
	ctx context.Context, client *fake.Clientset, pods podutil.GetPodsAssignedToNodeFunc,
) (frameworktypes.BalancePlugin, error) {
	factory := informers.NewSharedInformerFactory(client, 0)
	handle := &frameworkfake.HandleImpl{
		ClientsetImpl: client, GetPodsAssignedToNodeFuncImpl: pods, SharedInformerFactoryImpl: factory,
	}
	gates := featuregate.NewFeatureGate()
	if err := gates.Add(map[featuregate.Feature]featuregate.FeatureSpec{
		features.EvictionsInBackground: {Default: false, PreRelease: featuregate.Alpha},
	}); err != nil {
		return nil, err
	}
	options := evictions.NewOptions().WithMaxPodsToEvictPerNode(q.PerNode).WithMaxPodsToEvictTotal(q.Total)
	evictor, err := evictions.NewPodEvictor(
		ctx, client, &events.FakeRecorder{}, factory.Core().V1().Pods().Informer(), gates, options,
	)
	if err != nil {
		return nil, err
	}
	args := &defaultevictor.DefaultEvictorArgs{
		NoEvictionPolicy: defaultevictor.NoEvictionPolicy(q.NoEvictionPolicy),
	}
	filter, err := defaultevictor.New(ctx, args, handle)
	if err != nil {
		return nil, err
	}
	handle.PodEvictorImpl, handle.EvictorFilterImpl = evictor, filter.(frameworktypes.EvictorPlugin)
	own := &nodeutilization.HighNodeUtilizationArgs{
		Thresholds: q.Thresholds, NumberOfNodes: q.NumberOfNodes, EvictionModes: q.EvictionModes,
	}
	if err := nodeutilization.ValidateHighNodeUtilizationArgs(own); err != nil {
		return nil, err
	}
	made, err := nodeutilization.NewHighNodeUtilization(ctx, own, handle)
	if err != nil {
		return nil, err
	}
	return made.(frameworktypes.BalancePlugin), nil
}

// refusal says why the eviction API refuses a pod now; nil: it does not. Pods that are stopping are not healthy.
func (q *Question) refusal(pods map[string]*v1.Pod, evicted []string, name string) error {
	covering := 0
	for _, budget := range q.Budgets {
		selector := labels.SelectorFromSet(budget.Labels)
		if !selector.Matches(labels.Set(pods[name].Labels)) {
			continue
		}
		covering++
		expected, healthy := 0, 0
		for _, pod := range pods {
			if selector.Matches(labels.Set(pod.Labels)) {
				expected++
				if pod.DeletionTimestamp == nil {
					healthy++
				}
			}
		}
		for _, each := range evicted {
			if selector.Matches(labels.Set(pods[each].Labels)) {
				healthy--
			}
		}
		wanted := 0
		if budget.MaxUnavailable != nil {
			most, err := intstr.GetScaledValueFromIntOrPercent(budget.MaxUnavailable, expected, true)
			if err != nil {
				return err
			}
			wanted = max(0, expected-most)
		} else {
			least, err := intstr.GetScaledValueFromIntOrPercent(budget.MinAvailable, expected, true)
			if err != nil {
				return err
			}
			wanted = least
		}
		if healthy-wanted < 1 {
			return apierrors.NewTooManyRequests("a disruption budget protects the pod", 0)
		}
	}
	if covering > 1 {
		return apierrors.NewInternalError(fmt.Errorf("more than one disruption budget protects the pod"))
	}
	return nil
}

func (n *Node) node() *v1.Node {
	offered := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewMilliQuantity(n.CPUMilli, resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(n.Memory, resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(n.Pods, resource.DecimalSI),
	}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name},
		Status: v1.NodeStatus{
			Capacity: offered, Allocatable: offered,
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
	if n.Taint != "" {
		node.Spec.Taints = []v1.Taint{{Key: n.Taint, Effect: v1.TaintEffectNoSchedule}}
	}
	return node
}

func (p *Pod) pod() *v1.Pod {
	requests := v1.ResourceList{}
	if p.CPUMilli > 0 {
		requests[v1.ResourceCPU] = *resource.NewMilliQuantity(p.CPUMilli, resource.DecimalSI)
	}
	if p.Memory > 0 {
		requests[v1.ResourceMemory] = *resource.NewQuantity(p.Memory, resource.BinarySI)
	}
	needs := v1.ResourceRequirements{Requests: requests}
	if p.Guaranteed {
		needs.Limits = requests
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: p.Name, Namespace: "default", UID: types.UID(p.Name), Labels: p.Labels, Annotations: p.Annotations,
		},
		Spec: v1.PodSpec{
			NodeName: p.Node, Priority: &p.Priority, Containers: []v1.Container{{Name: "one", Resources: needs}},
		},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
	if p.OwnerKind != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: p.OwnerKind, Name: "owner", UID: "owner"}}
	}
	if p.Terminating {
		pod.DeletionTimestamp = &metav1.Time{}
	}
	return pod
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "evict:", err)
	os.Exit(1)
}
