package aaml

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/parallelize"
)

// handle is as much of kube-scheduler as the plugin asks: its snapshot.
type handle struct {
	fwk.Handle
	infos []fwk.NodeInfo
}

func (h *handle) SnapshotSharedLister() fwk.SharedLister { return snapshot{h: h} }

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(nil, 0) // nothing is ever listed
}

func (h *handle) Extenders() []fwk.Extender { return nil }

func (h *handle) NominatedPodsForNode(string) []fwk.PodInfo { return nil }

func (h *handle) SharedDRAManager() fwk.SharedDRAManager { return nil }

func (h *handle) Parallelizer() fwk.Parallelizer { return parallelize.NewParallelizer(2) }

type snapshot struct {
	fwk.SharedLister
	h *handle
}

func (s snapshot) NodeInfos() fwk.NodeInfoLister { return lister{h: s.h} }

type lister struct {
	fwk.NodeInfoLister
	h *handle
}

func (l lister) List() ([]fwk.NodeInfo, error) { return l.h.infos, nil }

func (l lister) Get(name string) (fwk.NodeInfo, error) {
	for _, info := range l.h.infos {
		if info.Node().Name == name {
			return info, nil
		}
	}
	return nil, fmt.Errorf("no node %s", name)
}

func (l lister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) { return nil, nil }

func (l lister) HavePodsWithRequiredAntiAffinityList() (found []fwk.NodeInfo, err error) {
	for _, info := range l.h.infos {
		if len(info.GetPodsWithRequiredAntiAffinity()) > 0 {
			found = append(found, info)
		}
	}
	return found, nil
}

func leastAllocated(t *testing.T) string {
	t.Helper()
	return written(t, `{"kind":"heuristic","features":{"version":1},"name":"least-allocated"}`)
}

// written returns a weights file with the policy.
func written(t *testing.T, policy string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "weights.json")
	if err := os.WriteFile(file, weightsOf(policy), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func weightsOf(policy string) []byte {
	sum := sha256.Sum256([]byte(policy))
	model := `{"name":"tried","agent":"","sha256":""}`
	return fmt.Appendf(nil, `{"format":%q,"version":1,"model":%s,"sha256":%q,"policy":%s}`,
		weightsFormat, model, hex.EncodeToString(sum[:]), policy)
}

// linearOf is a linear scorer that weighs the use of CPU after the pod is placed.
func linearOf(weight float64) string {
	weights := [4][linearWidth]float64{{weight}}
	text, err := json.Marshal(policyFile{
		Kind: "linear", Features: featuresFile{Version: 1, Linear: linearFeatures}, Terms: termFeatures,
		Weights: [][]float64{weights[0][:], weights[1][:], weights[2][:], weights[3][:]},
	})
	if err != nil {
		panic(err)
	}
	return strings.Replace(string(text), `,"layers":{"weights":null,"biases":null}`, "", 1)
}

func started(t *testing.T, args string, infos []fwk.NodeInfo) *Plugin {
	t.Helper()
	made, err := New(t.Context(), &runtime.Unknown{Raw: []byte(args)}, &handle{infos: infos})
	if err != nil {
		t.Fatal(err)
	}
	p := made.(*Plugin)
	if !strings.Contains(args, "deadline") {
		p.args.Deadline.Duration = time.Hour // a busy machine decides nothing
	}
	return p
}

// best returns the node that the plugin's score is the greatest of, "" where it skips itself.
func (p *Plugin) best(t *testing.T, cpu int64) string {
	t.Helper()
	infos := p.handle.(*handle).infos
	cycle, pod := framework.NewCycleState(), madePod("waits", "app", cpu, 64)
	status := p.PreScore(context.Background(), cycle, pod, infos)
	if status.IsSkip() {
		return ""
	}
	if !status.IsSuccess() {
		t.Fatal(status)
	}
	name, most := "", int64(-1)
	scores := make(fwk.NodeScoreList, len(infos))
	for i, info := range infos {
		score, status := p.Score(context.Background(), cycle, pod, info)
		if !status.IsSuccess() || score < 0 || score > 100 {
			t.Fatal(score, status)
		}
		scores[i] = fwk.NodeScore{Name: info.Node().Name, Score: score}
	}
	if extensions := p.ScoreExtensions(); extensions != nil {
		if status := extensions.NormalizeScore(context.Background(), cycle, pod, scores); !status.IsSuccess() {
			t.Fatal(status)
		}
	}
	for _, each := range scores {
		if each.Score > most {
			name, most = each.Name, each.Score
		}
	}
	return name
}

func TestTheDefaultPluginsThatAreCarriedDecideWhereThePolicyCannot(t *testing.T) {
	infos := twoNodes()
	tainted := infos[1].Node().DeepCopy() // the emptier node, which taint toleration, of weight 3, would avoid
	tainted.Spec.Taints = []v1.Taint{{Key: "old", Effect: v1.TaintEffectPreferNoSchedule}}
	p := started(t, `{"weightsFile": "/no/such/file", "fallback": "default"}`, infos)
	if got := p.best(t, 100); got != "empty" {
		t.Errorf("%q; expected the node that is least allocated", got)
	}
	infos[1].SetNode(tainted)
	if got := p.best(t, 100); got != "used" {
		t.Errorf("%q; expected the node without the taint", got)
	}
	if len(p.others) != len(defaultScores) {
		t.Errorf("%d plugins are carried; expected %d", len(p.others), len(defaultScores))
	}
}

func TestPluginsThatAreCarriedAreNotAskedWhereThePolicyDecides(t *testing.T) {
	p := started(t, fmt.Sprintf(`{"weightsFile": %q, "fallback": "default"}`, written(t, linearOf(1))), twoNodes())
	if got := p.best(t, 100); got != "used" {
		t.Errorf("%q; expected the policy's choice", got)
	}
}

// profileOf is a policy that is a profile of kube-scheduler's own plugins.
func profileOf(scores, pluginConfig string) string {
	return fmt.Sprintf(`{"kind":"kube-scheduler","features":{"version":1},"configuration":{
		"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","profiles":[{
		"schedulerName":"any","plugins":{"score":{"disabled":[{"name":"*"}],"enabled":[%s]}},"pluginConfig":[%s]}]}}`, scores, pluginConfig)
}

func fitBy(strategy string) string {
	return fmt.Sprintf(`{"name":"NodeResourcesFit","args":{"scoringStrategy":{"type":%q}}}`, strategy)
}

func TestAProfileOfKubeSchedulersOwnPluginsDecidesByItsWeightsAndArguments(t *testing.T) {
	infos := twoNodes()
	tainted := infos[1].Node().DeepCopy()
	tainted.Spec.Taints = []v1.Taint{{Key: "old", Effect: v1.TaintEffectPreferNoSchedule}}
	infos[1].SetNode(tainted)
	const fit, both = `{"name":"NodeResourcesFit"}`, `{"name":"NodeResourcesFit"},{"name":"TaintToleration","weight":9}`
	for _, each := range []struct{ scores, strategy, want string }{
		{fit, "LeastAllocated", "empty"}, {fit, "MostAllocated", "used"}, {both, "LeastAllocated", "used"},
	} {
		p := started(t, fmt.Sprintf(`{"weightsFile": %q, "candidates": 16}`, written(t, profileOf(each.scores, fitBy(each.strategy)))), infos)
		before := counted(t, noWeights)
		if got := p.best(t, 100); got != each.want || counted(t, noWeights) != before {
			t.Errorf("%v: %q", each, got)
		}
		if result := p.narrow(framework.NewCycleState(), madePod("waits", "app", 100, 64), infos); result != nil {
			t.Errorf("%v: narrowed to %v", each, result)
		}
	}
}

// twoNodes are one with a pod, which is the first, and one without.
func twoNodes() []fwk.NodeInfo {
	used, empty := framework.NewNodeInfo(madePod("runs", "app", 2000, 1024)), framework.NewNodeInfo()
	used.SetNode(madeNode("used", 4000, 16))
	empty.SetNode(madeNode("empty", 4000, 16))
	return []fwk.NodeInfo{used, empty}
}

func TestAFollowedClusterIsWhatAFreshOneIs(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	infos := madeNodes(30, 4, false, rng)
	followed := newCluster()
	for step := range 300 {
		switch at := rng.IntN(len(infos)); {
		case step%10 == 0: // a node leaves, another joins, all move
			infos = slices.Delete(slices.Clone(infos), at, at+1)
			joined := framework.NewNodeInfo(madePod(fmt.Sprintf("first-%d", step), "app-1", 100, 128))
			joined.SetNode(madeNode(fmt.Sprintf("joined-%d", step), 8000, 32))
			infos = append(infos, joined)
			rng.Shuffle(len(infos), func(i, j int) { infos[i], infos[j] = infos[j], infos[i] })
		case step%2 == 0 && len(infos[at].GetPods()) > 0:
			if err := infos[at].RemovePod(quiet, infos[at].GetPods()[0].GetPod()); err != nil {
				t.Fatal(err)
			}
		default:
			infos[at].AddPodInfo(podInfo(madePod(fmt.Sprintf("s-%d", step), fmt.Sprintf("app-%d", rng.IntN(4)), 200, 256)))
		}
		followed.follow(infos)
		fresh := newCluster()
		fresh.follow(infos)
		if !reflect.DeepEqual(followed.names, fresh.names) || !reflect.DeepEqual(followed.owned, fresh.owned) {
			t.Fatalf("step %d: names or owners differ", step)
		}
		if len(followed.kinds) != len(fresh.kinds) || len(followed.rows) != len(infos) {
			t.Fatalf("step %d: %d kinds; expected %d", step, len(followed.kinds), len(fresh.kinds))
		}
		for row := range infos {
			mine, other := followed.slots[row], fresh.slots[row]
			if followed.facts[mine] != fresh.facts[other] || followed.counts[mine] != fresh.counts[other] {
				t.Fatalf("step %d, row %d: %+v; expected %+v", step, row, followed.facts[mine], fresh.facts[other])
			}
		}
	}
}

func TestTheGreatestScoreIsThePolicysChoice(t *testing.T) {
	p := started(t, fmt.Sprintf(`{"weightsFile": %q}`, leastAllocated(t)), twoNodes())
	if got := p.best(t, 100); got != "empty" {
		t.Errorf("%q; expected the empty node", got)
	}
}

func TestOfEqualNodesTheFirstIsTaken(t *testing.T) {
	infos := madeNodes(250, 0, false, rand.New(rand.NewPCG(1, 1)))
	for _, info := range infos {
		info.SetNode(madeNode(info.Node().Name, 4000, 16))
	}
	p := started(t, fmt.Sprintf(`{"weightsFile": %q}`, leastAllocated(t)), infos)
	if got := p.best(t, 100); got != "node-0" {
		t.Errorf("%q; expected node-0", got)
	}
}

func TestGradesFallFromAHundredByRank(t *testing.T) {
	v := view{nodes: 5, rowChoice: []int32{1, 0, -1, 1, 2}, chosen: []float64{1, 2, 1}}
	var r ranks
	got := r.grade(&v, []float64{0.5, 2, -1}, []string{"a", "b", "c", "d", "e"})
	if want := map[string]uint8{"a": 100, "d": 99, "b": 98, "e": 97}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v; expected %v", got, want)
	}
}

func TestOnlyTheBestHundredNodesAreGraded(t *testing.T) {
	v, names, scores := view{nodes: 300}, []string{}, []float64{}
	for i := range 300 {
		v.rowChoice, v.chosen = append(v.rowChoice, int32(i)), append(v.chosen, 1)
		names, scores = append(names, fmt.Sprint(i)), append(scores, float64((i*7)%300))
	}
	var r ranks
	got := r.grade(&v, scores, names)
	if len(got) != 100 {
		t.Fatalf("%d nodes; expected 100", len(got))
	}
	for i, score := range scores {
		if want := max(int(score)-199, 0); int(got[names[i]]) != want {
			t.Errorf("node of score %v: grade %d; expected %d", score, got[names[i]], want)
		}
	}
}

func TestArgumentsThatAreNotKnownAreRefused(t *testing.T) {
	for _, args := range []string{`{"weightFile": "a"}`, `{"deadline": "0s"}`, `{"kind": "OtherArgs"}`, `{"deadline": 7}`, `{"fallback": "none"}`, `[`} {
		if _, err := New(t.Context(), &runtime.Unknown{Raw: []byte(args)}, &handle{}); err == nil {
			t.Errorf("%s is taken", args)
		}
	}
	p := started(t, "apiVersion: kubescheduler.config.k8s.io/v1\nkind: AAMLArgs\ndeadline: 20ms", nil)
	if p.args.Deadline.Duration != 20*time.Millisecond {
		t.Errorf("deadline %v; expected 20ms", p.args.Deadline.Duration)
	}
}

func TestWithoutGoodWeightsTheOtherPluginsDecide(t *testing.T) {
	registerMetrics()
	before := counted(t, noWeights)
	p := started(t, `{"weightsFile": "/no/such/file"}`, twoNodes())
	if got := p.best(t, 100); got != "" {
		t.Errorf("%q is chosen", got)
	}
	if after := counted(t, noWeights); after != before+1 {
		t.Errorf("counted %v pods; expected one more than %v", after, before)
	}
	if _, err := New(t.Context(), &runtime.Unknown{Raw: []byte(`{"weightsFile": "/no/such/file", "requireWeights": true}`)}, &handle{}); err == nil {
		t.Error("it starts without the weights that it requires")
	}
}

func counted(t *testing.T, reason string) float64 {
	t.Helper()
	value, err := testutil.GetCounterMetricValue(replaced.WithLabelValues(reason))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestWeightsThatAreNoGoodAreRefusedAndTheLastGoodOnesKept(t *testing.T) {
	good := linearOf(-1)
	file := written(t, good)
	p := started(t, fmt.Sprintf(`{"weightsFile": %q, "pollInterval": "1h"}`, file), twoNodes())
	bad := map[string][]byte{
		"empty":                             {},
		"cut off":                           weightsOf(good)[:200],
		"a digit changed":                   []byte(strings.Replace(string(weightsOf(good)), "[-1,", "[-2,", 1)),
		"another format":                    []byte(strings.Replace(string(weightsOf(good)), weightsFormat, "aaml-model", 1)),
		"of a later version":                []byte(strings.Replace(string(weightsOf(good)), `"version":1`, `"version":2`, 1)),
		"of other features":                 weightsOf(strings.Replace(good, `"cpu_squared"`, `"cpu_cubed"`, 1)),
		"features computed in another way":  weightsOf(strings.Replace(good, `"version":1`, `"version":9`, 1)),
		"not a number":                      weightsOf(linearOf(math.MaxFloat64)),
		"another kind":                      weightsOf(`{"kind":"tree","features":{"version":1}}`),
		"a formula of nothing":              weightsOf(`{"kind":"formula","features":{"version":1}}`),
		"a formula of what is not computed": weightsOf(`{"kind":"formula","features":{"version":1,"formula":["node.age"]}}`),
		"a formula with a circle":           weightsOf(`{"kind":"formula","features":{"version":1},"constants":[1],"code":[{"operator":"neg","operands":[1]}]}`),
		"a profile of no score plugin":      weightsOf(profileOf(`{"name":"NodePorts"}`, "")),
		"a profile that is not read":        weightsOf(profileOf(`{"name":"NodeResourcesFit"}`, fitBy("MiddleAllocated"))),
		"a field too many":                  weightsOf(strings.Replace(good, `"kind"`, `"extra":1,"kind"`, 1)),
	}
	for what, raw := range bad {
		if err := os.WriteFile(file, raw, 0o644); err != nil {
			t.Fatal(err)
		}
		p.weights.look()
		if got := p.best(t, 100); got != "empty" {
			t.Errorf("%s: %q; expected the choice of the weights before", what, got)
		}
	}
}

func TestAConfigMapsNewWeightsAreTakenWithoutARestart(t *testing.T) {
	folder := t.TempDir()
	for name, weight := range map[string]float64{"..1": -1, "..2": 1} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, name, "weights.json"), weightsOf(linearOf(weight)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	point := func(to string) { // as kubelet does: a new link is renamed over the old one
		if err := os.Symlink(to, filepath.Join(folder, "..tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(folder, "..tmp"), filepath.Join(folder, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	point("..1")
	if err := os.Symlink("..data/weights.json", filepath.Join(folder, "weights.json")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "weights.json")
	p := started(t, fmt.Sprintf(`{"weightsFile": %q, "pollInterval": "2ms"}`, file), twoNodes())
	if got := p.best(t, 100); got != "empty" {
		t.Fatalf("%q; expected the least used node", got)
	}
	point("..2")
	for p.best(t, 100) != "used" {
		time.Sleep(time.Millisecond)
	}
}

// failing is a policy that cannot decide.
type failing struct{ with string }

func (f failing) scores(_ *view, scores []float64) {
	if f.with == panicked {
		panic("a decision that fails")
	}
	for i := range scores {
		scores[i] = math.NaN()
	}
}

func TestADecisionThatFailsIsLeftToTheOtherPlugins(t *testing.T) {
	p := started(t, fmt.Sprintf(`{"weightsFile": %q}`, leastAllocated(t)), twoNodes())
	good := p.weights.current.Load()
	for _, reason := range []string{panicked, notFinite} {
		before := counted(t, reason)
		p.weights.before = good
		p.weights.put(&policy{scorer: failing{reason}})
		if got := p.best(t, 100); got != "" {
			t.Errorf("%s: %q is chosen", reason, got)
		}
		if counted(t, reason) != before+1 {
			t.Errorf("%s is not counted", reason)
		}
	}
	if got := p.best(t, 100); got != "empty" { // those that gave no numbers are out of force
		t.Errorf("%q; expected the choice of the weights before", got)
	}
	p.args.Deadline.Duration = -time.Second
	before := counted(t, overTime)
	if got := p.best(t, 100); got != "" {
		t.Errorf("%q is chosen after the deadline", got)
	}
	if counted(t, overTime) != before+1 {
		t.Error("a decision that came too late is not counted")
	}
}

func TestANodeThatTheSnapshotLacksIsLeftToTheOtherPlugins(t *testing.T) {
	p := started(t, fmt.Sprintf(`{"weightsFile": %q}`, leastAllocated(t)), twoNodes())
	stranger := framework.NewNodeInfo()
	stranger.SetNode(madeNode("stranger", 4000, 16))
	status := p.PreScore(context.Background(), framework.NewCycleState(), madePod("waits", "app", 100, 64), []fwk.NodeInfo{stranger})
	if !status.IsSkip() {
		t.Error(status)
	}
}

func TestTheKernelComputesWhatGoComputes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, shape := range [][3]int{{1, 1, 1}, {3, 26, 20}, {4, 32, 32}, {29, 77, 48}} {
		n, in, out := shape[0], shape[1], shape[2]
		weight, bias := make([][]float32, out), make([]float32, out)
		for o := range weight {
			bias[o], weight[o] = rng.Float32(), make([]float32, in)
			for i := range weight[o] {
				weight[o][i] = rng.Float32() - 0.5
			}
		}
		d := newDense(weight, bias)
		a := make([]float32, padded(n)*in)
		for i := range a {
			a[i] = rng.Float32() - 0.5
		}
		c := make([]float32, padded(n)*d.width)
		for _, floor := range []float32{0, noFloor} {
			d.apply(c, a, in, n, d.bias, 0, floor)
			for r := range n {
				for o := range out {
					want := float64(bias[o])
					for i := range in {
						want += float64(a[r*in+i]) * float64(weight[o][i])
					}
					if want = max(want, float64(floor)); math.Abs(want-float64(c[r*d.width+o])) > 1e-5 {
						t.Fatalf("%v, row %d, column %d: %v; expected %v", shape, r, o, c[r*d.width+o], want)
					}
				}
			}
			plain := make([]float32, len(c))
			for b := 0; b < d.width; b += blockColumns {
				multiplyPlain(plain[b:], a, d.weight[b*in:], d.bias[b:], d.width, in, 0, in, padded(n), floor)
			}
			for i := range c {
				if math.Abs(float64(c[i]-plain[i])) > 1e-5 {
					t.Fatalf("%v: %v in Go; expected %v", shape, plain[i], c[i])
				}
			}
		}
	}
}

func TestANumberThatIsNoneIsNotHiddenByARectifier(t *testing.T) {
	d := newDense([][]float32{{1}}, []float32{0})
	c := make([]float32, padded(1)*d.width)
	d.apply(c, []float32{float32(math.NaN()), 0, 0, 0}, 1, 1, d.bias, 0, 0)
	if !math.IsNaN(float64(c[0])) {
		t.Errorf("%v; expected NaN", c[0])
	}
}

func TestNamesOfFeaturesAreToldApart(t *testing.T) {
	for _, names := range [][]string{nodeFeatures, pairFeatures, podFeatures} {
		if sets.New(names...).Len() != len(names) {
			t.Errorf("%v holds a name twice", names)
		}
	}
}
