package main

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// watched is the cpu with a count of how often its device was opened.
type watched struct {
	*cpu.Backend
	opened int
}

func (w *watched) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	w.opened++
	return w.Backend.Open(ctx, index)
}

// shelf is a store of one blob that notes how its claims are ended.
type shelf struct {
	blob     []byte
	said     []string
	requires []string
}

func (s *shelf) Find(context.Context, artefacts.Subject) artefacts.Found {
	if s.blob == nil {
		return artefacts.Found{Reason: fault.Absent, Claim: s}
	}
	return artefacts.Found{Blob: s.blob, Claim: s}
}

func (s *shelf) Loaded()  { s.said = append(s.said, "loaded") }
func (s *shelf) Abandon() { s.said = append(s.said, "abandoned") }

func (s *shelf) Refused(ctx context.Context) artefacts.Found {
	s.said, s.blob = append(s.said, "refused"), nil
	return s.Find(ctx, artefacts.Subject{})
}

func (s *shelf) Save(_ context.Context, blob []byte, _ time.Duration, requires []string) error {
	s.said, s.blob, s.requires = append(s.said, "saved"), blob, requires
	return nil
}

// E1, K7, P11: items of one device share its executor; what is built is saved with what it
// needs; a blob that the device refuses is said to be refused, and built anew.
func TestBuildItems(t *testing.T) {
	embedded, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	lib, store := &watched{Backend: embedded}, &shelf{}
	b := &builder{store: store, executors: map[string]*gpuexec.Executor{},
		library: func(string) (ops.Library, int, error) { return lib, 0, nil }}
	defer b.close(t.Context())
	build := func(n int64, result string, said ...string) {
		t.Helper()
		store.said = nil
		got, err := b.item(t.Context(), manifest.Item{Backend: cpu.Name, Op: ops.New(ops.GELU, n, 8).String(), Descriptor: "x"})
		if err != nil || got != result || !slices.Equal(store.said, said) {
			t.Errorf("item %d: %s, %v, the store was told %q, want %s and %q", n, got, err, store.said, result, said)
		}
	}
	build(1, warmBuilt, "saved")
	if store.requires == nil {
		t.Error("it was saved without what it needs of a processor")
	}
	build(1, warmHit, "loaded")
	store.blob = []byte("what no device takes")
	build(2, warmBuilt, "refused", "saved")
	if lib.opened != 1 {
		t.Errorf("the device was opened %d times for three items", lib.opened)
	}
}
