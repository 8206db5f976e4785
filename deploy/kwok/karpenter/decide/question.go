package main

import (
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// Question is one state of a cluster, or several if Karpenter is to see it change while it waits.
type Question struct {
	Ask string `json:"ask"`
	// Flags are those of Karpenter's command line.
	Flags []string `json:"flags"`
	// InstanceTypes is what can be bought, as a file of the KWOK provider has it.
	InstanceTypes json.RawMessage `json:"instanceTypes"`
	NodePool      *v1.NodePool    `json:"nodePool"`
	// Moments are the cluster at first, and each time that Karpenter has waited for a plan. Of a single one, only the
	// time goes on.
	Moments []Moment `json:"moments"`
	// Looks is how often Karpenter looks for nodes that may go, every 10 s, until it finds some; once if it is 0.
	Looks int `json:"looks"`
}

// Moment is a cluster at one time.
type Moment struct {
	Now        time.Time                      `json:"now"`
	NodeClaims []*v1.NodeClaim                `json:"nodeClaims"`
	Nodes      []*corev1.Node                 `json:"nodes"`
	Pods       []*corev1.Pod                  `json:"pods"`
	Budgets    []policyv1.PodDisruptionBudget `json:"budgets"`
	// Volumes are those that VolumeClaims of pods are bound to.
	Volumes      []*corev1.PersistentVolume      `json:"volumes"`
	VolumeClaims []*corev1.PersistentVolumeClaim `json:"volumeClaims"`
	// Nominated are the provider IDs of nodes that are kept for pods, Deleting of those on their way out.
	Nominated []string `json:"nominated"`
	Deleting  []string `json:"deleting"`
}

// Answer is what Karpenter would do.
type Answer struct {
	Error    string              `json:"error,omitempty"`
	Claims   []Claim             `json:"claims,omitempty"`
	Used     map[string][]string `json:"used,omitempty"`     // by node: the waiting pods that are meant for it
	Unplaced map[string]string   `json:"unplaced,omitempty"` // by pod: why it has no place
	Commands []Command           `json:"commands,omitempty"`
	Looks    int                 `json:"looks,omitempty"` // how often it looked
	Waits    int                 `json:"waits,omitempty"` // how often it waited to look at a plan again
}

// Claim is a node to buy: Types are those that it may be of, and Launched what the KWOK provider makes of it.
type Claim struct {
	Types        []string `json:"types"`
	Pods         []string `json:"pods"`
	Launched     string   `json:"launched"`
	CapacityType string   `json:"capacityType"`
	Zone         string   `json:"zone"`
}

// Command is one decision to give back or replace nodes.
type Command struct {
	Method       string   `json:"method"`
	Nodes        []string `json:"nodes"`
	Replacements []Claim  `json:"replacements,omitempty"`
	Nominated    []string `json:"nominated,omitempty"` // nodes that the pods are meant for
}
