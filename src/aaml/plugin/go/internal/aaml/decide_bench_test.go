package aaml

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkDecide takes the time of PreScore and Score of a pod, all nodes scored, where each decision changes one node.
// Nodes are mixed (pods of nine sizes) or all unlike. p50-µs is the median; on a busy machine
// min-µs says more. kinds is how many kinds of nodes there are.
//
//	go test -bench Decide -run '^$' ./internal/aaml
func BenchmarkDecide(b *testing.B) {
	registerMetrics()
	rng := rand.New(rand.NewPCG(1, 2))
	scorers := []struct {
		name string
		make func() scorer
	}{
		{"mlp", func() scorer { return madeNetwork("mlp", "actor", rng) }},
		{"gnn", func() scorer { return madeNetwork("gnn", "q", rng) }},
		{"linear", func() scorer { return &linear{} }},
	}
	for _, unlike := range []bool{false, true} {
		for _, n := range []int{100, 1000, 2000, 5000, 10000, 15000} {
			infos := madeNodes(n, 12, unlike, rng)
			for _, each := range scorers {
				b.Run(fmt.Sprintf("%s/unlike=%v/%d", each.name, unlike, n), func(b *testing.B) {
					p := Plugin{weights: &holder{}, cluster: newCluster()}
					rule := &policy{scorer: each.make()}
					var took []time.Duration
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						pod := madePod(fmt.Sprintf("waits-%d", i), fmt.Sprintf("app-%d", i%50), int64(100+i%7*50), 256)
						info := infos[(i*7919)%n]
						start := time.Now()
						made, reason := p.decide(rule, infos, pod, among(infos), start.Add(time.Hour))
						if reason != "" {
							b.Fatal(reason)
						}
						best := uint8(0)
						for _, info := range infos {
							best = max(best, made[info.Node().Name])
						}
						took = append(took, time.Since(start))
						if best != 100 {
							b.Fatal(best)
						}
						if len(info.GetPods()) > 20 {
							for _, old := range info.GetPods()[:10] {
								if err := info.RemovePod(quiet, old.GetPod()); err != nil {
									b.Fatal(err)
								}
							}
						}
						info.AddPodInfo(podInfo(pod))
					}
					slices.Sort(took)
					b.ReportMetric(float64(took[0].Microseconds()), "min-µs")
					b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
					b.ReportMetric(float64(len(p.view.kinds)), "kinds")
				})
			}
		}
	}
}
