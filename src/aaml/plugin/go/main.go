// Command kube-scheduler is Kubernetes' own scheduler with one more score plugin: AAML, a learned policy.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"aaml.dev/plugin/internal/aaml"
)

func main() {
	os.Exit(cli.Run(app.NewSchedulerCommand(app.WithPlugin(aaml.Name, aaml.New))))
}
