package aaml

import (
	"sync"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	scheduler "k8s.io/kubernetes/pkg/scheduler/metrics"
)

// Why a decision was left to the profile's other plugins: the values of the label reason.
const (
	noWeights   = "no_weights"
	overTime    = "deadline"
	panicked    = "panic"
	notFinite   = "not_finite"
	missingNode = "missing_feature"
)

var (
	decisions = metrics.NewCounter(&metrics.CounterOpts{
		Name: "aaml_plugin_decisions_total", Help: "Decisions of the policy.", StabilityLevel: metrics.ALPHA,
	})
	narrowed = metrics.NewCounter(&metrics.CounterOpts{
		Name: "aaml_plugin_narrowed_total", Help: "Decisions of which kube-scheduler filtered the best nodes only.", StabilityLevel: metrics.ALPHA,
	})
	replaced = metrics.NewCounterVec(&metrics.CounterOpts{
		Name: "aaml_plugin_replaced_total", Help: "Pods that were left to the profile's other plugins, by reason.", StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	duration = metrics.NewHistogram(&metrics.HistogramOpts{
		Name: "aaml_plugin_duration_seconds", Help: "Time that a decision takes.", StabilityLevel: metrics.ALPHA,
		Buckets: metrics.ExponentialBuckets(0.00005, 2, 14),
	})
	weightsInfo = metrics.NewGaugeVec(&metrics.GaugeOpts{
		Name: "aaml_plugin_weights_info", Help: "1 for the weights in force.", StabilityLevel: metrics.ALPHA,
	}, []string{"sha256", "model"})
	weightsRefused = metrics.NewCounter(&metrics.CounterOpts{
		Name: "aaml_plugin_weights_refused_total", Help: "Weights files that were not taken; the log says why.", StabilityLevel: metrics.ALPHA,
	})
	choicesSent = metrics.NewCounter(&metrics.CounterOpts{
		Name: "aaml_plugin_choices_sent_total", Help: "Choices that were sent to the learner.", StabilityLevel: metrics.ALPHA,
	})
	choicesDropped = metrics.NewCounter(&metrics.CounterOpts{
		Name: "aaml_plugin_choices_dropped_total", Help: "Choices that were not sent: the learner was away, or behind.", StabilityLevel: metrics.ALPHA,
	})
	learnerThere = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "aaml_plugin_learner_there", Help: "1 while a learner listens.", StabilityLevel: metrics.ALPHA,
	})
	register sync.Once
)

func registerMetrics() {
	scheduler.Register() // kube-scheduler has done so; without it there is no length of its queue
	register.Do(func() {
		legacyregistry.MustRegister(decisions, narrowed, replaced, duration, weightsInfo, weightsRefused, choicesSent, choicesDropped, learnerThere)
		for _, reason := range []string{noWeights, overTime, panicked, notFinite, missingNode} {
			replaced.WithLabelValues(reason) // 0 from the start, so that alerts see the first one
		}
	})
}

// waiting returns how many pods wait, besides the one that is scheduled: what kube-scheduler's own metric says of its queue.
func waiting() int {
	total := 0.0
	for _, gauge := range []metrics.GaugeMetric{
		scheduler.ActivePods(), scheduler.BackoffPods(), scheduler.UnschedulablePods(), scheduler.GatedPods(),
	} {
		var value dto.Metric
		if gauge.Write(&value) == nil {
			total += value.GetGauge().GetValue()
		}
	}
	return max(int(total), 0)
}
