package aaml

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
)

//go:embed embedded
var embedded embed.FS

// holder holds the policy in force, and takes another one from the weights file when that changes. What is no good is
// refused with one line in the log, and the last good policy stays.
type holder struct {
	file    string
	ready   func(*policy) error // makes what a policy needs of kube-scheduler
	current atomic.Pointer[policy]

	changes sync.Mutex
	before  *policy // the one before it: in force again where the current one turns out to give no numbers
	seen    [sha256.Size]byte
}

// newHolder reads the first weights: those of the file, or else those that were compiled in.
func newHolder(file string, ready func(*policy) error) *holder {
	h := &holder{file: file, ready: ready}
	if raw, err := embedded.ReadFile("embedded/weights.json"); err == nil {
		h.take(raw, "the weights that were compiled in")
	}
	h.look()
	return h
}

// watch looks at the file again and again until the context is done. A ConfigMap's file is a link that is moved, so what
// is compared is what it holds.
func (h *holder) watch(ctx context.Context, interval time.Duration) {
	if h.file == "" {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last os.FileInfo
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			now, err := os.Stat(h.file)
			if err == nil && last != nil && os.SameFile(now, last) && now.ModTime().Equal(last.ModTime()) && now.Size() == last.Size() {
				continue
			}
			last = now
			h.look()
		}
	}
}

// look reads the file and takes what it holds.
func (h *holder) look() {
	if h.file == "" {
		return
	}
	h.changes.Lock()
	defer h.changes.Unlock()
	raw, err := os.ReadFile(h.file)
	if err != nil {
		if sum := sha256.Sum256([]byte(err.Error())); sum != h.seen {
			h.seen = sum
			h.refuse(h.file, err)
		}
		return
	}
	if sum := sha256.Sum256(raw); sum != h.seen {
		h.seen = sum
		h.take(raw, h.file)
	}
}

func (h *holder) take(raw []byte, from string) {
	next, err := parseWeights(bytes.TrimSpace(raw))
	if err == nil {
		err = h.ready(next)
	}
	if err != nil {
		h.refuse(from, err)
		return
	}
	h.before = h.current.Load()
	h.put(next)
	klog.InfoS("AAML: weights are in force", "from", from, "model", next.model.Name, "sha256", next.sha256)
}

func (h *holder) refuse(from string, err error) {
	weightsRefused.Inc()
	kept := "none: the other plugins decide"
	if current := h.current.Load(); current != nil {
		kept = current.model.Name
	}
	klog.ErrorS(fmt.Errorf("%w", err), "AAML: weights are refused", "from", from, "kept", kept)
}

func (h *holder) put(p *policy) {
	h.current.Store(p)
	weightsInfo.Reset()
	if p != nil {
		weightsInfo.WithLabelValues(p.sha256, p.model.Name).Set(1)
	}
}

// withdraw takes a policy out of force that gave no numbers; the one before it, where there is one, decides again.
func (h *holder) withdraw(bad *policy, err error) {
	h.changes.Lock()
	defer h.changes.Unlock()
	if h.current.Load() != bad {
		return
	}
	before := h.before
	h.before = nil
	h.put(before)
	h.refuse(h.file, err)
}
