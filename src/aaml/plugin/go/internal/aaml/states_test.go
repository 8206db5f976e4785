package aaml

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// state is a cluster and a pod that waits, as Kubernetes' objects, and the weights files to score it by.
type state struct {
	Nodes    []*v1.Node `json:"nodes"`
	Pods     []*v1.Pod  `json:"pods"`
	Pod      *v1.Pod    `json:"pod"`
	Feasible []string   `json:"feasible"`
	Queue    int        `json:"queue"`
	Weights  []string   `json:"weights"`
	// Ages are how long pods run, in seconds, by their uid; read by policies that expect lifetimes.
	Ages map[types.UID]float64 `json:"ages"`
}

// answer is what the plugin makes of a state by one weights file: features of every node, those of the feasible ones with
// the pod, those of the pod, and the scores and grades of the nodes (a score is null where the pod may not go).
type answer struct {
	Nodes  [][]float32 `json:"nodes"`
	Pairs  [][]float32 `json:"pairs"`
	Pod    []float32   `json:"pod"`
	Scores []*float64  `json:"scores"`
	Grades []int       `json:"grades"`
}

// TestAnswersStates answers states, a line of JSON each, from the standard input. The Python tests ask it; they know what
// the answers must be.
func TestAnswersStates(t *testing.T) {
	if os.Getenv("AAML_PLUGIN_STATES") == "" {
		t.Skip("is asked by tests/integration/test_plugin_states.py, which sets AAML_PLUGIN_STATES=1")
	}
	policies := map[string]*policy{}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	plain := newCluster()
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked state
		if err := json.Unmarshal(line, &asked); err != nil {
			t.Fatal(err)
		}
		for _, file := range asked.Weights {
			if policies[file] == nil {
				raw, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if policies[file], err = parseWeights(raw); err != nil {
					t.Fatal(err)
				}
			}
		}
		var answers []answer
		for _, file := range asked.Weights {
			c := plain
			if table := policies[file].expects; table != nil {
				c = newCluster()
				c.runs = newRuns(table)
				c.runs.now = func() float64 { return 1e7 }
				asked.run(c.runs)
			}
			answers = append(answers, asked.answer(c, policies[file]))
		}
		if err := out.Encode(answers); err != nil {
			t.Fatal(err)
		}
	}
}

// infos returns the nodes of a state as kube-scheduler's snapshot shows them.
func (s *state) infos() []fwk.NodeInfo {
	placed := map[string][]*v1.Pod{}
	for _, pod := range s.Pods {
		placed[pod.Spec.NodeName] = append(placed[pod.Spec.NodeName], pod)
	}
	infos := make([]fwk.NodeInfo, 0, len(s.Nodes))
	for _, node := range s.Nodes {
		info := framework.NewNodeInfo(placed[node.Name]...)
		info.SetNode(node)
		infos = append(infos, info)
	}
	return infos
}

// run lets the pods run for as long as the state says.
func (s *state) run(r *runs) {
	for _, pod := range s.Pods {
		r.of(podInfo(pod), pod.Spec.NodeName).sinceS = r.now() - s.Ages[pod.UID]
	}
}

func (s *state) answer(c *cluster, by *policy) answer {
	infos := s.infos()
	byName := map[string]fwk.NodeInfo{}
	for _, info := range infos {
		byName[info.Node().Name] = info
	}
	var feasible []fwk.NodeInfo
	for _, name := range s.Feasible {
		feasible = append(feasible, byName[name])
	}
	var v view
	var f features
	c.follow(infos)
	v.look(c, c.requestOf(s.Pod, s.Queue), among(feasible))
	v.fragments = by.fragments
	f.fill(&v)
	made := answer{Pod: f.pod}
	for row := range infos {
		kind := int(v.compact[c.slots[row]])
		made.Nodes = append(made.Nodes, f.nodes[kind*nodeWidth:(kind+1)*nodeWidth])
		var pair []float32
		if choice := int(v.rowChoice[row]); choice >= 0 {
			pair = f.pairs[choice*pairWidth : (choice+1)*pairWidth]
		}
		made.Pairs = append(made.Pairs, pair)
	}
	scores := make([]float64, len(v.kindOf))
	by.scores(&v, scores)
	made.Scores = make([]*float64, len(infos))
	for row, choice := range v.rowChoice {
		if choice >= 0 {
			made.Scores[row] = &scores[choice]
		}
	}
	var r ranks
	grades := r.grade(&v, scores, c.names)
	for _, name := range c.names {
		made.Grades = append(made.Grades, int(grades[name]))
	}
	return made
}
