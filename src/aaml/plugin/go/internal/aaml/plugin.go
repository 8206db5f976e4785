// Package aaml is a score plugin of kube-scheduler: a policy of AAML chooses among the nodes that the filters leave.
//
// PreScore computes the features of all nodes, scores the feasible ones and ranks them; Score hands the ranks out. Of pods
// whose filters are simple PreFilter does so already, see narrow.go. Where
// the policy cannot decide, PreScore skips the plugin for that pod, and the profile's other score plugins decide; or, in a
// profile without such, kube-scheduler's default ones, which the plugin carries and which cost nothing until then.
//
// Of pods that ask for GPUs it also filters nodes, chooses devices and binds with their annotation: see sharing.go.
//
// It does not implement SignPlugin, so a profile with it is not batched (OpportunisticBatching): a signature says that
// pods which have the same one are scored alike, and this plugin's scores depend on the whole cluster, which each bind
// changes.
package aaml

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Name is the plugin's name in a KubeSchedulerConfiguration.
const Name = "AAML"

// Plugin decides for one profile. kube-scheduler scores one pod at a time, so what a decision works with is kept for the next.
type Plugin struct {
	handle  fwk.Handle
	args    Args
	weights *holder
	sender  *sender // nil: nobody learns

	others  carried // where they decide instead of the profile's
	widened bool    // all nodes are filtered for every pod

	cluster   *cluster
	runs      *runs  // nil until a policy expects lifetimes
	expectsOf string // the life table that is in force, as its weights file told it
	view      view
	scores    []float64
	ranks     ranks
	held      held
}

var (
	_ fwk.PreScorePlugin = &Plugin{}
	_ fwk.ScorePlugin    = &Plugin{}
)

// decision is what PreScore tells Score: the grades of the best hundred nodes by their names. Nothing of it changes any more.
type decision map[string]uint8

// Clone returns the decision itself.
func (d decision) Clone() fwk.StateData { return d }

// best returns the node with the greatest grade.
func (d decision) best() string {
	for name, grade := range d {
		if grade == best {
			return name
		}
	}
	return ""
}

// take makes a node the best one.
func (d decision) take(name string) {
	d[d.best()]--
	d[name] = best
}

// New makes the plugin of a profile.
func New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := decodeArgs(object)
	if err != nil {
		return nil, err
	}
	registerMetrics()
	p := &Plugin{handle: handle, args: args, cluster: newCluster()}
	p.weights = newHolder(args.WeightsFile, func(next *policy) (err error) {
		if next.profile != nil {
			next.carried, err = newCarried(ctx, handle, next.profile, next.profile.Plugins.Score.Enabled)
		}
		return err
	})
	if args.RequireWeights && p.weights.current.Load() == nil {
		return nil, fmt.Errorf("%s: there are no good weights to start with, and requireWeights is set", Name)
	}
	if args.Fallback == byDefault {
		if p.others, err = byDefaultProfile(ctx, handle); err != nil {
			return nil, fmt.Errorf("%s: the default score plugins cannot be carried: %w", Name, err)
		}
	}
	go p.weights.watch(ctx, args.PollInterval.Duration)
	if args.LearnSocket != "" {
		p.sender = newSender(args.LearnSocket)
		go p.sender.run(ctx)
	}
	return p, nil
}

// Name returns the plugin's name.
func (p *Plugin) Name() string { return Name }

// PreScore decides, where PreFilter has not. Where the policy cannot, it skips the plugin or asks the plugins that it carries.
func (p *Plugin) PreScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	if data, err := state.Read(narrowedKey); err == nil {
		state.Write(Name, data)
		return nil
	}
	start := time.Now()
	kept := p.sender.begin(state, feasible)
	policy := p.weights.current.Load()
	if policy == nil {
		return p.leave(ctx, state, pod, feasible, noWeights)
	}
	if policy.carried != nil {
		status := ask(ctx, policy.carried, state, pod, feasible)
		if status.IsSuccess() {
			decisions.Inc()
			duration.Observe(time.Since(start).Seconds())
		}
		return status
	}
	infos, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return p.leave(ctx, state, pod, feasible, missingNode)
	}
	made, reason := p.decide(policy, infos, pod, among(feasible), start.Add(p.args.Deadline.Duration))
	if reason != "" {
		return p.leave(ctx, state, pod, feasible, reason)
	}
	state.Write(Name, made)
	p.sender.decided(kept, made, policy)
	decisions.Inc()
	duration.Observe(time.Since(start).Seconds())
	return nil
}

// decide returns the decision, or the reason why there is none.
func (p *Plugin) decide(policy *policy, infos []fwk.NodeInfo, pod *v1.Pod, feasible marker, until time.Time) (made decision, reason string) {
	defer func() {
		if caught := recover(); caught != nil {
			klog.ErrorS(fmt.Errorf("%v", caught), "AAML: a decision failed", "pod", klog.KObj(pod), "stack", string(debug.Stack()))
			p.cluster, p.expectsOf = newCluster(), "" // whatever it holds is read anew
			made, reason = nil, panicked
		}
	}()
	if err := p.prepare(policy); err != nil {
		klog.ErrorS(err, "AAML: no lifetimes can be expected")
		return nil, missingNode
	}
	p.cluster.held = &p.held
	p.cluster.expect()
	p.cluster.follow(infos)
	if meant := p.view.look(p.cluster, p.cluster.requestOf(pod, waiting()), feasible); p.view.feasible < meant {
		return nil, missingNode
	}
	if time.Now().After(until) {
		return nil, overTime
	}
	p.view.fragments = policy.fragments
	p.scores = sized(p.scores, len(p.view.kindOf))
	policy.scores(&p.view, p.scores)
	if err := finite(p.scores); err != nil {
		p.weights.withdraw(policy, err)
		return nil, notFinite
	}
	made = p.ranks.grade(&p.view, p.scores, p.cluster.names)
	if other := p.sender.other(&p.view, p.scores); other >= 0 {
		made.take(p.cluster.names[other])
	}
	if time.Now().After(until) {
		return nil, overTime
	}
	return made, ""
}

// prepare follows the lifetimes of pods where a policy expects them. What was learned stays where new weights come with the
// life table that those before them came with.
func (p *Plugin) prepare(policy *policy) error {
	if policy.expectsOf == p.expectsOf {
		return nil
	}
	p.cluster, p.expectsOf = newCluster(), policy.expectsOf
	if policy.expects == nil {
		return nil
	}
	if p.runs == nil {
		p.runs = newRuns(policy.expects)
		if err := p.runs.watch(p.handle); err != nil {
			p.runs, p.expectsOf = nil, ""
			return err
		}
	}
	p.runs.table, p.cluster.runs = policy.expects, p.runs
	return nil
}

// leave lets other plugins decide.
func (p *Plugin) leave(ctx context.Context, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo, reason string) *fwk.Status {
	replaced.WithLabelValues(reason).Inc()
	if p.others == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	return ask(ctx, p.others, state, pod, feasible)
}

// ask prepares plugins that are carried, whose scores NormalizeScore hands out.
func ask(ctx context.Context, whom carried, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) *fwk.Status {
	asked, status := whom.preScore(ctx, pod, feasible)
	if status.IsSuccess() {
		state.Write(Name, asked)
	}
	return status
}

// Score returns a node's rank, 0 where others decide.
func (p *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	data, err := state.Read(Name)
	if err != nil {
		return 0, fwk.AsStatus(err)
	}
	made, _ := data.(decision)
	return int64(made[info.Node().Name]), nil
}

// ScoreExtensions returns the plugin, which may have asked others for their scores.
func (p *Plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore asks the carried plugins where they decide. Ranks are scores already.
func (p *Plugin) NormalizeScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	data, err := state.Read(Name)
	if err != nil {
		return fwk.AsStatus(err)
	}
	if others, ok := data.(*asked); ok {
		return others.score(ctx, pod, scores)
	}
	return nil
}
