package aaml

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// Args are the plugin's arguments in a KubeSchedulerConfiguration, kind AAMLArgs.
type Args struct {
	metav1.TypeMeta `json:",inline"`
	// WeightsFile is read at the start and again whenever it changes; empty: the weights that were compiled in.
	WeightsFile string `json:"weightsFile,omitempty"`
	// Deadline is how long a decision may take; beyond it the profile's other plugins decide. Default 100ms.
	Deadline metav1.Duration `json:"deadline,omitempty"`
	// PollInterval is how often the weights file is looked at. Default 1s.
	PollInterval metav1.Duration `json:"pollInterval,omitempty"`
	// Candidates is how many of the policy's best nodes kube-scheduler is handed of a pod whose filters are simple, 100 at
	// most. 0, the default, hands it all nodes: other score plugins have a say then.
	Candidates int `json:"candidates,omitempty"`
	// Fallback says which plugins decide where the policy cannot: "profile" (default), the other score plugins of the
	// profile, or "default", kube-scheduler's default ones, for a profile without other score plugins.
	Fallback string `json:"fallback,omitempty"`
	// RequireWeights ends the program where there are no good weights at the start; else other plugins decide.
	RequireWeights bool `json:"requireWeights,omitempty"`
	// LearnSocket is where `aaml learn` listens; empty: nobody is told what is decided.
	LearnSocket string `json:"learnSocket,omitempty"`
}

// decodeArgs reads the arguments; a field that is not known is an error.
func decodeArgs(object runtime.Object) (Args, error) {
	args := Args{
		Deadline: metav1.Duration{Duration: 100 * time.Millisecond}, PollInterval: metav1.Duration{Duration: time.Second},
		Fallback: byProfile,
	}
	unknown, ok := object.(*runtime.Unknown)
	if object != nil && !ok {
		return args, fmt.Errorf("pluginConfig of %s: want AAMLArgs, got %T", Name, object)
	}
	if unknown != nil && len(unknown.Raw) > 0 {
		raw, err := yaml.YAMLToJSON(unknown.Raw)
		if err != nil {
			return args, fmt.Errorf("pluginConfig of %s: %w", Name, err)
		}
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&args); err != nil {
			return args, fmt.Errorf("pluginConfig of %s: %w", Name, err)
		}
	}
	if args.Kind != "" && args.Kind != "AAMLArgs" {
		return args, fmt.Errorf("pluginConfig of %s: kind %q; expected AAMLArgs", Name, args.Kind)
	}
	if args.Fallback != byProfile && args.Fallback != byDefault {
		return args, fmt.Errorf("pluginConfig of %s: fallback %q; expected profile or default", Name, args.Fallback)
	}
	if args.Candidates < 0 || args.Candidates > best {
		return args, fmt.Errorf("pluginConfig of %s: candidates %d; expected 0 to %d", Name, args.Candidates, best)
	}
	if args.Deadline.Duration <= 0 || args.PollInterval.Duration <= 0 {
		return args, fmt.Errorf("pluginConfig of %s: deadline and pollInterval must be longer than 0", Name)
	}
	return args, nil
}
