package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	kwokoptions "sigs.k8s.io/karpenter/kwok/options"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	claimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/cost"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
)

// silent takes Karpenter's events and keeps none.
type silent struct{}

func (silent) Publish(...events.Event) {}

// served is the client that Karpenter asks; what it serves changes from moment to moment.
type served struct {
	client.Client
	pods map[string][]*corev1.Pod // by node, "" for those that wait
}

// List answers which pods a node has from an index, as a cache of Karpenter's does: it asks that for each node.
func (s *served) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	asked := client.ListOptions{}
	asked.ApplyOptions(opts)
	found, ofPods := list.(*corev1.PodList)
	if !ofPods || asked.FieldSelector == nil {
		return s.Client.List(ctx, list, opts...)
	}
	name, exact := asked.FieldSelector.RequiresExactMatch("spec.nodeName")
	if !exact {
		return s.Client.List(ctx, list, opts...)
	}
	for _, pod := range s.pods[name] {
		found.Items = append(found.Items, *pod.DeepCopy())
	}
	return nil
}

// Get leaves a namespace aside where Karpenter asks for a volume with one, as an API server does.
func (s *served) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if _, ofVolume := object.(*corev1.PersistentVolume); ofVolume {
		key.Namespace = ""
	}
	return s.Client.Get(ctx, key, object, opts...)
}

// stopped is a clock that moves only when it is set. Who waits for it waits until it is told to go on.
type stopped struct {
	*clocktesting.FakeClock
	waits chan chan time.Time
}

func (s *stopped) After(time.Duration) <-chan time.Time {
	wait := make(chan time.Time, 1)
	s.waits <- wait
	return wait
}

// world is Karpenter as it runs, above objects in memory.
type world struct {
	ctx         context.Context
	question    *Question
	clock       *stopped
	client      *served
	provider    *kwok.CloudProvider
	cluster     *state.Cluster
	cost        *cost.ClusterCost
	claims      *claimdisruption.Controller
	provisioner *provisioning.Provisioner
	queue       *disruption.Queue
	controller  *disruption.Controller
}

func newWorld(ctx context.Context, question *Question) (*world, error) {
	ctx, err := withFlags(ctx, question.Flags)
	if err != nil {
		return nil, err
	}
	w := &world{question: question, client: &served{}, clock: &stopped{
		FakeClock: clocktesting.NewFakeClock(question.Moments[0].Now), waits: make(chan chan time.Time),
	}}
	if w.provider, w.ctx, err = newProvider(ctx, question.InstanceTypes); err != nil {
		return nil, err
	}
	recorder := silent{}
	w.cluster = state.NewCluster(w.clock, w.client, w.provider)
	w.cost = cost.NewClusterCost(w.ctx, w.provider, w.client)
	w.claims = claimdisruption.NewController(w.clock, w.client, w.provider)
	w.provisioner = provisioning.NewProvisioner(w.client, recorder, w.provider, w.cluster, w.clock,
		deviceallocation.NewController(w.client), virtualpods.NewVirtualPodCache(w.client))
	w.queue = disruption.NewQueue(w.client, recorder, w.cluster, w.clock, w.provisioner)
	w.controller = disruption.NewController(w.ctx, w.clock, w.client, w.provisioner, w.provider, recorder, w.cluster, w.queue, w.cost)
	return w, w.show(&question.Moments[0])
}

// withFlags returns a context with the options that Karpenter's command line has for these flags.
func withFlags(ctx context.Context, flags []string) (context.Context, error) {
	set := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	for _, injected := range options.Injectables {
		injected.AddFlags(set)
	}
	for _, injected := range options.Injectables {
		if err := injected.Parse(set, flags...); err != nil {
			return nil, err
		}
		ctx = injected.ToContext(ctx)
	}
	return ctx, nil
}

// newProvider returns the KWOK provider for these types. It launches nodes into a place of its own.
func newProvider(ctx context.Context, types []byte) (*kwok.CloudProvider, context.Context, error) {
	file, err := os.CreateTemp("", "instance-types-*.json")
	if err != nil {
		return nil, nil, err
	}
	defer os.Remove(file.Name()) //nolint:errcheck // a file in the folder for temporary ones
	if _, err := file.Write(types); err != nil {
		return nil, nil, err
	}
	if err := file.Close(); err != nil {
		return nil, nil, err
	}
	ctx = kwokoptions.ToContext(ctx, &kwokoptions.Options{InstanceTypesFilePath: file.Name()})
	read, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		return nil, nil, err
	}
	class := &v1alpha1.KWOKNodeClass{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	return kwok.NewCloudProvider(ctx, fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(class).Build(), read), ctx, nil
}

// show makes a moment the cluster that Karpenter sees.
func (w *world) show(moment *Moment) error {
	w.clock.SetTime(moment.Now)
	w.client.Client = fake.NewClientBuilder().WithScheme(scheme.Scheme).
		WithStatusSubresource(&v1.NodePool{}, &v1.NodeClaim{}, &corev1.Node{}).
		WithIndex(&storagev1.VolumeAttachment{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*storagev1.VolumeAttachment).Spec.NodeName}
		}).
		WithIndex(&corev1.Node{}, "spec.providerID", func(o client.Object) []string {
			return []string{o.(*corev1.Node).Spec.ProviderID}
		}).
		WithIndex(&v1.NodeClaim{}, "status.providerID", func(o client.Object) []string {
			return []string{o.(*v1.NodeClaim).Status.ProviderID}
		}).
		WithObjects(w.objects(moment)...).Build()
	w.client.pods = map[string][]*corev1.Pod{}
	for _, each := range moment.Pods {
		w.client.pods[each.Spec.NodeName] = append(w.client.pods[each.Spec.NodeName], each)
	}
	w.cluster.Reset()
	w.cost.Reset()
	types, err := w.provider.GetInstanceTypes(w.ctx, w.question.NodePool)
	if err != nil {
		return err
	}
	w.cost.UpdateOfferings(w.ctx, w.question.NodePool, types)
	for _, each := range moment.NodeClaims {
		if err := w.takeIn(each.Name); err != nil {
			return err
		}
	}
	for _, each := range moment.Nodes {
		node := &corev1.Node{}
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(each), node); err != nil {
			return err
		}
		if err := w.cluster.UpdateNode(w.ctx, node); err != nil {
			return err
		}
	}
	for _, each := range moment.Pods {
		if affinity := each.Spec.Affinity; affinity != nil && affinity.PodAntiAffinity != nil {
			if err := w.cluster.UpdatePod(w.ctx, each.DeepCopy()); err != nil {
				return err
			}
		}
	}
	for _, each := range moment.Nominated {
		w.cluster.NominateNodeForPod(w.ctx, each)
	}
	w.cluster.MarkForDeletion(moment.Deleting...)
	if !w.cluster.Synced(w.ctx) {
		return fmt.Errorf("the state does not hold all objects of the moment")
	}
	return nil
}

func (w *world) objects(moment *Moment) []client.Object {
	objects := []client.Object{w.question.NodePool.DeepCopy()}
	for _, each := range moment.NodeClaims {
		objects = append(objects, each.DeepCopy())
	}
	for _, each := range moment.Nodes {
		objects = append(objects, each.DeepCopy())
	}
	for _, each := range moment.Pods {
		objects = append(objects, each.DeepCopy())
	}
	for _, each := range moment.Volumes {
		objects = append(objects, each.DeepCopy())
	}
	for _, each := range moment.VolumeClaims {
		objects = append(objects, each.DeepCopy())
	}
	for i := range moment.Budgets {
		objects = append(objects, moment.Budgets[i].DeepCopy())
	}
	return objects
}

// takeIn lets Karpenter judge whether a node claim may be consolidated, and adds it to the state.
func (w *world) takeIn(name string) error {
	claim := &v1.NodeClaim{}
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, claim); err != nil {
		return err
	}
	if _, err := w.claims.Reconcile(w.ctx, claim); err != nil {
		return err
	}
	w.cluster.UpdateNodeClaim(claim)
	return w.cost.UpdateNodeClaim(w.ctx, claim)
}

func (w *world) provision() (*Answer, error) {
	results, err := w.provisioner.Schedule(w.ctx)
	if err != nil {
		return nil, err
	}
	answer := &Answer{Used: used(results), Unplaced: map[string]string{}}
	for pod, err := range results.PodErrors {
		answer.Unplaced[pod.Name] = err.Error()
	}
	for _, each := range results.NewNodeClaims {
		claim, err := w.launched(each)
		if err != nil {
			return nil, err
		}
		answer.Claims = append(answer.Claims, claim)
	}
	return answer, nil
}

// disrupt goes through Karpenter's methods, as often as is asked for, until one of them acts.
func (w *world) disrupt() (*Answer, error) {
	answer := &Answer{}
	for answer.Looks < max(1, w.question.Looks) && len(answer.Commands) == 0 {
		if answer.Looks > 0 {
			if err := w.later(pollingPeriod); err != nil {
				return nil, err
			}
		}
		answer.Looks++
		if err := w.look(answer); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// look goes once through the methods. Whenever Karpenter waits for a plan to prove itself, the next moment comes.
func (w *world) look(answer *Answer) error {
	done := make(chan error, 1)
	go func() {
		_, err := w.controller.Reconcile(w.ctx)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			return w.report(answer)
		case wait := <-w.clock.waits:
			answer.Waits++
			if err := w.proceed(answer.Waits); err != nil {
				return err
			}
			wait <- w.clock.Now()
		}
	}
}

// Karpenter's constants of these names.
const (
	commandValidationDelay = 15 * time.Second
	pollingPeriod          = 10 * time.Second
)

// proceed ends a wait of Karpenter's: the cluster is then as the next moment has it.
func (w *world) proceed(waits int) error {
	if moments := w.question.Moments; len(moments) > 1 {
		return w.show(&moments[min(waits, len(moments)-1)])
	}
	return w.later(commandValidationDelay)
}

// later lets time pass in which nothing happens.
func (w *world) later(passes time.Duration) error {
	w.clock.Step(passes)
	for _, each := range w.question.Moments[0].NodeClaims {
		if err := w.takeIn(each.Name); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) report(answer *Answer) error {
	seen := map[*disruption.Command]bool{}
	for _, each := range w.queue.GetCommands() {
		if seen[each] {
			continue
		}
		seen[each] = true
		command := Command{Method: each.ConsolidationType(), Nominated: keys(used(each.Results))}
		for _, candidate := range each.Candidates {
			command.Nodes = append(command.Nodes, candidate.NodeClaim.Name)
		}
		slices.Sort(command.Nodes)
		for _, replacement := range each.Replacements {
			claim, err := w.launched(replacement.NodeClaim)
			if err != nil {
				return err
			}
			command.Replacements = append(command.Replacements, claim)
		}
		answer.Commands = append(answer.Commands, command)
	}
	return nil
}

// launched returns a claim, and which node the KWOK provider makes of it.
func (w *world) launched(each *scheduling.NodeClaim) (Claim, error) {
	claim := Claim{}
	for _, pod := range each.Pods {
		claim.Pods = append(claim.Pods, pod.Name)
	}
	ordered := each.ToNodeClaim()
	ordered.Name = ordered.GenerateName + "x"
	for _, requirement := range ordered.Spec.Requirements {
		if requirement.Key == corev1.LabelInstanceTypeStable {
			claim.Types = requirement.Values
		}
	}
	node, err := w.provider.Create(w.ctx, ordered)
	if err != nil {
		return claim, err
	}
	claim.Launched = node.Labels[corev1.LabelInstanceTypeStable]
	claim.CapacityType = node.Labels[v1.CapacityTypeLabelKey]
	claim.Zone = node.Labels[corev1.LabelTopologyZone]
	return claim, nil
}

func used(results scheduling.Results) map[string][]string {
	found := map[string][]string{}
	for _, node := range results.ExistingNodes {
		for _, pod := range node.Pods {
			found[node.NodeClaim.Name] = append(found[node.NodeClaim.Name], pod.Name)
		}
	}
	return found
}

func keys(found map[string][]string) []string {
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
