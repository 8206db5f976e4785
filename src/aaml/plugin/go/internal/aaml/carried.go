package aaml

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
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

// carried are score plugins with the weights and arguments that kube-scheduler's default profile has them with.
type carried []carriedPlugin

type carriedPlugin struct {
	fwk.ScorePlugin
	weight int64
}

func newCarried(ctx context.Context, handle fwk.Handle) (carried, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	profile, registry := defaults.Profiles[0], plugins.NewInTreeRegistry()
	args := map[string]runtime.Object{}
	for _, each := range profile.PluginConfig {
		args[each.Name] = each.Args
	}
	var found carried
	for _, each := range profile.Plugins.MultiPoint.Enabled {
		if !slices.Contains(defaultScores, each.Name) {
			continue
		}
		made, err := registry[each.Name](ctx, args[each.Name], handle)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", each.Name, err)
		}
		found = append(found, carriedPlugin{made.(fwk.ScorePlugin), int64(max(each.Weight, 1))})
	}
	return found, nil
}

// asked are the carried plugins that score one pod, and the nodes on which it may go.
type asked struct {
	plugins  carried
	feasible []fwk.NodeInfo
}

// Clone returns the same.
func (a *asked) Clone() fwk.StateData { return a }

// preScore prepares a pod's scores; a plugin that skips itself is left out.
func (c carried) preScore(ctx context.Context, state fwk.CycleState, pod *v1.Pod, feasible []fwk.NodeInfo) (*asked, *fwk.Status) {
	a := &asked{feasible: feasible}
	for _, each := range c {
		if pre, ok := each.ScorePlugin.(fwk.PreScorePlugin); ok {
			status := pre.PreScore(ctx, state, pod, feasible)
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
func (a *asked) score(ctx context.Context, state fwk.CycleState, pod *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	byName := make(map[string]fwk.NodeInfo, len(a.feasible))
	for _, info := range a.feasible {
		byName[info.Node().Name] = info
	}
	totals := make([]int64, len(scores))
	for _, each := range a.plugins {
		given := make(fwk.NodeScoreList, len(scores))
		for i := range scores {
			score, status := each.Score(ctx, state, pod, byName[scores[i].Name])
			if !status.IsSuccess() {
				return status
			}
			given[i] = fwk.NodeScore{Name: scores[i].Name, Score: score}
		}
		if extensions := each.ScoreExtensions(); extensions != nil {
			if status := extensions.NormalizeScore(ctx, state, pod, given); !status.IsSuccess() {
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
