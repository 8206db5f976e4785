package aaml

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// Which plugins decide where the policy cannot: the values of the argument `fallback`.
const (
	byProfile = "profile" // the other score plugins of the profile, which score every pod
	byDefault = "default" // kube-scheduler's default ones, which this plugin carries and asks then only
)

// defaultScores are kube-scheduler's default score plugins that keep nothing between pods. Of the others that score,
// VolumeBinding and DynamicResources look at storage and devices where a profile is told to.
var defaultScores = []string{
	names.TaintToleration, names.NodeAffinity, names.NodeResourcesFit, names.PodTopologySpread, names.InterPodAffinity,
	names.NodeResourcesBalancedAllocation, names.ImageLocality,
}

// carried are kube-scheduler's score plugins with the weights and arguments of a profile: the default one where the policy
// cannot decide, or that of a policy which is a configuration.
type carried []carriedPlugin

type carriedPlugin struct {
	fwk.ScorePlugin
	weight int64
}

// byDefaultProfile returns the score plugins of kube-scheduler's default profile.
func byDefaultProfile(ctx context.Context, handle fwk.Handle) (carried, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile, scores := &defaults.Profiles[0], []config.Plugin{}
	for _, each := range profile.Plugins.MultiPoint.Enabled {
		if slices.Contains(defaultScores, each.Name) {
			scores = append(scores, each)
		}
	}
	return newCarried(ctx, handle, profile, scores)
}

// readProfile returns the profile of a KubeSchedulerConfiguration that names its score plugins under `score`, read and
// checked as kube-scheduler does it.
func readProfile(raw []byte) (*config.KubeSchedulerProfile, error) {
	read, _, err := scheme.Codecs.UniversalDecoder().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	told, ok := read.(*config.KubeSchedulerConfiguration)
	if !ok || len(told.Profiles) != 1 {
		return nil, fmt.Errorf("is no KubeSchedulerConfiguration with one profile")
	}
	if wrong := validation.ValidateKubeSchedulerConfiguration(told); wrong != nil {
		return nil, wrong
	}
	for _, each := range told.Profiles[0].Plugins.Score.Enabled {
		if !slices.Contains(defaultScores, each.Name) {
			return nil, fmt.Errorf("score plugin %q; expected some of %v", each.Name, defaultScores)
		}
	}
	return &told.Profiles[0], nil
}

// newCarried makes score plugins with the arguments that they have in a profile.
func newCarried(ctx context.Context, handle fwk.Handle, profile *config.KubeSchedulerProfile, scores []config.Plugin) (carried, error) {
	registry, args := plugins.NewInTreeRegistry(), map[string]runtime.Object{}
	for _, each := range profile.PluginConfig {
		args[each.Name] = each.Args
	}
	found := carried{}
	for _, each := range scores {
		made, err := registry[each.Name](ctx, args[each.Name], handle)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", each.Name, err)
		}
		found = append(found, carriedPlugin{made.(fwk.ScorePlugin), int64(max(each.Weight, 1))})
	}
	return found, nil
}

// asked are the carried plugins that score one pod, what they keep of it, and the nodes on which it may go. What they keep is
// apart from what the profile's own plugins of the same names keep, which may have other arguments.
type asked struct {
	plugins  carried
	state    fwk.CycleState
	feasible []fwk.NodeInfo
}

// Clone returns the same.
func (a *asked) Clone() fwk.StateData { return a }

// preScore prepares a pod's scores; a plugin that skips itself is left out.
func (c carried) preScore(ctx context.Context, pod *v1.Pod, feasible []fwk.NodeInfo) (*asked, *fwk.Status) {
	a := &asked{state: framework.NewCycleState(), feasible: feasible}
	for _, each := range c {
		if pre, ok := each.ScorePlugin.(fwk.PreScorePlugin); ok {
			status := pre.PreScore(ctx, a.state, pod, feasible)
			if status.IsSkip() {
				continue
			}
			if !status.IsSuccess() {
				return nil, status
			}
		}
		a.plugins = append(a.plugins, each)
	}
	return a, nil
}

// score writes what the plugins give the nodes into the list, as ranks: 100 for those that they give the most, and one less
// for each greater sum. Equal sums stay equal, so that kube-scheduler draws among them as it would have.
func (a *asked) score(ctx context.Context, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	byName := make(map[string]fwk.NodeInfo, len(a.feasible))
	for _, info := range a.feasible {
		byName[info.Node().Name] = info
	}
	totals := make([]int64, len(scores))
	for _, each := range a.plugins {
		given := make(fwk.NodeScoreList, len(scores))
		for i := range scores {
			score, status := each.Score(ctx, a.state, pod, byName[scores[i].Name])
			if !status.IsSuccess() {
				return status
			}
			given[i] = fwk.NodeScore{Name: scores[i].Name, Score: score}
		}
		if extensions := each.ScoreExtensions(); extensions != nil {
			if status := extensions.NormalizeScore(ctx, a.state, pod, given); !status.IsSuccess() {
				return status
			}
		}
		for i := range given {
			totals[i] += each.weight * given[i].Score
		}
	}
	sums := slices.Clone(totals)
	slices.Sort(sums)
	sums = slices.Compact(sums)
	for i, total := range totals {
		at, _ := slices.BinarySearch(sums, total)
		scores[i].Score = int64(max(best-(len(sums)-1-at), 0))
	}
	return nil
}
