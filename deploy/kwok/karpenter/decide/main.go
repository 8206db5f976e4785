// Command decide answers what Karpenter would do in a given state of a cluster.
//
// It reads one question a line and writes one answer a line, both as JSON. Karpenter's own packages decide: what nodes
// it would buy for pods that wait ("provision"), or which nodes it would give back or replace ("disrupt"). There is no
// API server: the objects of a question are served from memory, and the clock stands still, except for the 15 s that
// Karpenter waits before it looks at a plan again.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"sigs.k8s.io/controller-runtime/pkg/log"

	operatorlogging "sigs.k8s.io/karpenter/pkg/operator/logging"
)

const longestLine = 256 << 20

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), longestLine)
	answers := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(answers)
	log.SetLogger(operatorlogging.NopLogger)
	for lines.Scan() {
		answer, err := answered(lines.Bytes())
		if err != nil {
			answer = &Answer{Error: err.Error()}
		}
		if err := encoder.Encode(answer); err != nil {
			fail(err)
		}
		if err := answers.Flush(); err != nil {
			fail(err)
		}
	}
	if err := lines.Err(); err != nil {
		fail(err)
	}
}

func answered(line []byte) (*Answer, error) {
	question := &Question{}
	if err := json.Unmarshal(line, question); err != nil {
		return nil, fmt.Errorf("reading the question: %w", err)
	}
	if len(question.Moments) == 0 {
		return nil, fmt.Errorf("a question without a moment")
	}
	world, err := newWorld(log.IntoContext(context.Background(), operatorlogging.NopLogger), question)
	if err != nil {
		return nil, err
	}
	switch question.Ask {
	case "provision":
		return world.provision()
	case "disrupt":
		return world.disrupt()
	default:
		return nil, fmt.Errorf("ask: %q, and accepted is provision or disrupt", question.Ask)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "decide:", err)
	os.Exit(1)
}
