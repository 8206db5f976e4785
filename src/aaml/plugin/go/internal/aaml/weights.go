package aaml

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"

	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

const (
	weightsFormat  = "aaml-plugin-weights"
	weightsVersion = 1
)

// weightsFile is what aaml.plugin.weights writes. The policy's text has a checksum, so that a file of which a digit was
// changed or lost is told from a good one.
type weightsFile struct {
	Format  string          `json:"format"`
	Version int             `json:"version"`
	Model   model           `json:"model"`
	SHA256  string          `json:"sha256"`
	Policy  json.RawMessage `json:"policy"`
}

// model is where the policy comes from.
type model struct {
	Name   string `json:"name"`
	Agent  string `json:"agent"`
	SHA256 string `json:"sha256"`
}

type policyFile struct {
	Kind     string       `json:"kind"`
	Features featuresFile `json:"features"`
	// of a network
	Encoder string `json:"encoder,omitempty"`
	Head    string `json:"head,omitempty"`
	Width   int    `json:"width,omitempty"`
	Layers  layers `json:"layers,omitempty"`
	// of a linear scorer
	Terms   []string    `json:"terms,omitempty"`
	Weights [][]float64 `json:"weights,omitempty"`
	// of a formula
	Constants []float64     `json:"constants,omitempty"`
	Code      []instruction `json:"code,omitempty"`
	// of a policy that expects lifetimes
	Lifetimes json.RawMessage `json:"lifetimes,omitempty"`
	// of a heuristic, and of a scorer of devices that has no weights
	Name string `json:"name,omitempty"`
	// of a scorer of devices: weights by group of pods, layers or a formula, and what rests of a device are worth
	DeviceLayers []dense64 `json:"device_layers,omitempty"`
	Rests        []float64 `json:"rests,omitempty"`
	// of a profile of kube-scheduler's own plugins
	Configuration json.RawMessage `json:"configuration,omitempty"`
	// of a policy that weighs fragments of GPUs
	Expected *expectedFile `json:"expected_pods,omitempty"`
}

type featuresFile struct {
	Version int      `json:"version"`
	Node    []string `json:"node,omitempty"`
	Pair    []string `json:"pair,omitempty"`
	Pod     []string `json:"pod,omitempty"`
	Linear  []string `json:"linear,omitempty"`
	Formula []string `json:"formula,omitempty"`
	Devices []string `json:"devices,omitempty"`
}

// scorer gives each choice of a view a score, higher is better.
type scorer interface {
	scores(v *view, scores []float64)
}

// policy is what a weights file holds, ready to decide: by its scorer, or by kube-scheduler's own plugins as a profile has
// them.
type policy struct {
	scorer
	profile   *config.KubeSchedulerProfile
	carried   carried // of the profile
	model     model
	sha256    string // of the file
	fragments *fragments
	expects   *lifetimes
	expectsOf string // the text that they were read from
}

// parseWeights reads a weights file. An error says in one line what is wrong with it.
func parseWeights(raw []byte) (*policy, error) {
	var file weightsFile
	if err := strictly(raw, &file); err != nil {
		return nil, fmt.Errorf("is damaged: %w", err)
	}
	if file.Format != weightsFormat || file.Version != weightsVersion {
		return nil, fmt.Errorf("format %q, version %d; expected %s, version %d", file.Format, file.Version, weightsFormat, weightsVersion)
	}
	if sum := sha256.Sum256(file.Policy); hex.EncodeToString(sum[:]) != file.SHA256 {
		return nil, fmt.Errorf("is damaged: its policy has not the checksum that it says")
	}
	var content policyFile
	if err := strictly(file.Policy, &content); err != nil {
		return nil, fmt.Errorf("is damaged: %w", err)
	}
	if content.Features.Version != FeaturesVersion {
		return nil, fmt.Errorf("features of version %d; this plugin computes version %d", content.Features.Version, FeaturesVersion)
	}
	sum := sha256.Sum256(raw)
	p := &policy{model: file.Model, sha256: hex.EncodeToString(sum[:]), expectsOf: string(content.Lifetimes)}
	var err error
	if content.Kind == "kube-scheduler" {
		p.profile, err = readProfile(content.Configuration)
		return p, err
	}
	var expected *fragments
	if content.Expected != nil {
		if expected, err = newFragments(content.Expected); err != nil {
			return nil, err
		}
	}
	if p.scorer, err = content.scorer(expected); err != nil {
		return nil, err
	}
	if content.Kind != "devices" {
		p.fragments = expected // which it sees as features
	}
	if len(content.Lifetimes) > 0 {
		var told lifetimesFile
		if err := strictly(content.Lifetimes, &told); err != nil {
			return nil, fmt.Errorf("lifetimes are damaged: %w", err)
		}
		if p.expects, err = newLifetimes(&told); err != nil {
			return nil, err
		}
	}
	return p, p.try()
}

func strictly(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return err
	}
	if decoder.More() {
		return fmt.Errorf("something follows the end")
	}
	return nil
}

func (p *policyFile) scorer(expected *fragments) (scorer, error) {
	switch p.Kind {
	case "network":
		for _, each := range []struct {
			what        string
			theirs, our []string
		}{{"node", p.Features.Node, nodeFeatures}, {"pair", p.Features.Pair, pairFeatures}, {"pod", p.Features.Pod, podFeatures}} {
			if len(each.theirs) > len(each.our) || !equal(each.theirs, each.our[:len(each.theirs)]) {
				return nil, fmt.Errorf("reads other %s features than this plugin computes", each.what)
			}
		}
		if len(p.Features.Node) <= nodeCapacity {
			return nil, fmt.Errorf("does not read the node feature capacity")
		}
		if p.Width < 1 || p.Width > 4096 {
			return nil, fmt.Errorf("width %d; expected 1 to 4096", p.Width)
		}
		return newNetwork(p.Encoder, p.Head, p.Width, len(p.Features.Node), len(p.Features.Pair), len(p.Features.Pod), p.Layers)
	case "linear":
		return newLinear(p.Terms, p.Features.Linear, p.Weights)
	case "formula":
		return newFormula(p.Features.Formula, p.Constants, p.Code)
	case "heuristic":
		return newHeuristic(p.Name)
	case "devices":
		return newDeviceScorer(p, expected)
	}
	return nil, fmt.Errorf("policy of kind %q; expected network, linear, formula, heuristic, devices or kube-scheduler", p.Kind)
}

// try scores a made-up cluster: weights that give no numbers are refused before they decide anything.
func (p *policy) try() error {
	v := view{
		fragments: p.fragments,
		pod:       request{cpu: 500, memory: 1 << 30, scoredCPU: 500, scoredMemory: 1 << 30, queue: 3},
		nodes:     4, feasible: 3, count: []float64{1, 2, 1}, kindOf: []int32{0, 1}, siblings: []float64{0, 1}, chosen: []float64{1, 2},
		kinds: []*facts{
			{cpu: 4000, memory: 16 << 30, pods: 110, capacity: true},
			{cpu: 8000, memory: 16 << 30, pods: 110, usedCPU: 7900, usedMemory: 4 << 30, usedPods: 9, scoredCPU: 7900, scoredMemory: 4 << 30, capacity: true},
			{cpu: 2000, memory: 4 << 30, pods: 110, cordoned: true, devices: packDevices([]int64{deviceMilli, 400})},
		},
	}
	scores := make([]float64, len(v.kindOf))
	p.scores(&v, scores)
	return finite(scores)
}

func finite(scores []float64) error {
	for _, score := range scores {
		if math.IsNaN(score) || math.IsInf(score, 0) {
			return fmt.Errorf("gives %v for a score", score)
		}
	}
	return nil
}
