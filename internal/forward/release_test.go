package forward

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// modelOfItsOwn is a model on the CPU behind a runtime of its own.
func modelOfItsOwn(t *testing.T) (*Model, *kiln.Runtime) {
	t.Helper()
	return modelWith(t, kiln.Config{})
}

// modelWith is modelOfItsOwn on a runtime of that config.
func modelWith(t *testing.T, cfg kiln.Config) (*Model, *kiln.Runtime) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	lib, err := cpu.New("auto")
	must(err)
	cfg.Workers, cfg.Lookup = 1, func(string) (string, bool) { return "", false }
	rt, err := kiln.Open(cfg)
	must(err)
	t.Cleanup(func() { rt.Close(context.Background()) })
	exec, err := rt.Executor(context.Background(), lib, 0)
	must(err)
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	must(err)
	text, _ := data.Model("bert_tiny_l2_h128")
	list, err := Parse("list", text)
	must(err)
	weights, err := OpenWeights(list, 1)
	must(err)
	t.Cleanup(func() { weights.Close() })
	session, err := rt.Session(kiln.SessionConfig{})
	must(err)
	return New(Config{Session: session, Executor: exec, Library: lib, Engine: engine, Weights: weights, Store: rt.Store()}), rt
}

// released says whether a buffer was given back: it can then not be read.
func released(m *Model, b *gpuexec.Buffer) bool {
	return errors.Is(m.exec.Read(context.Background(), b, 0, make([]byte, 1)), fault.ErrInvalid)
}

func runTokens(t *testing.T, m *Model, n int) {
	t.Helper()
	if _, err := m.Run(context.Background(), [][]int32{make([]int32, n)}); err != nil {
		t.Fatal(err)
	}
}

// E1: the arena of a smaller shape goes when a larger one comes, the last one with the model.
func TestArenasAreReleased(t *testing.T) {
	m, _ := modelOfItsOwn(t)
	runTokens(t, m, 3)
	small := m.arena
	runTokens(t, m, 60)
	if m.arena == small || !released(m, small) {
		t.Error("the arena of 3 tokens is kept beside that of 60")
	}
	large := m.arena
	runTokens(t, m, 3)
	if m.arena != large {
		t.Error("a smaller request has another arena")
	}
	m.Close()
	if !released(m, large) {
		t.Error("the arena is kept by a model that was closed")
	}
}

// E1: what a run that failed was computed with is not used again: a device may not be done.
func TestFailedRunLeavesPlanAndArena(t *testing.T) {
	m, _ := modelOfItsOwn(t)
	defer m.Close()
	runTokens(t, m, 3)
	arena, plan := m.arena, m.last
	plan.steps[0].grid = gpuexec.Size{1 << 20}
	if _, err := m.Run(context.Background(), [][]int32{{1, 2, 3}}); !errors.Is(err, fault.ErrInvalid) {
		t.Fatalf("a grid above that of the operation: %v, want ErrInvalid", err)
	}
	if m.last == plan || m.arena == arena || !released(m, arena) {
		t.Error("the plan or the arena of a run that failed is kept")
	}
	runTokens(t, m, 3)
}

// T2: the memory of weights that were flushed goes when the model asks anew, and the rest
// with the model.
func TestFlushedWeightsAreReleased(t *testing.T) {
	m, rt := modelOfItsOwn(t)
	runTokens(t, m, 3)
	buffers := func() (all []*gpuexec.Buffer) {
		for _, held := range m.tensors.held {
			all = append(all, held.buffer())
		}
		return all
	}
	flush := func() {
		if err := rt.Constants().SetCapacity(context.Background(), constants.CPU, kiln.Unlimited); err != nil {
			t.Fatal(err)
		}
	}
	old := buffers()
	flush()
	runTokens(t, m, 3)
	now := buffers()
	m.Close()
	flush()
	for what, list := range map[string][]*gpuexec.Buffer{"flushed": old, "of a closed model": now} {
		for _, b := range list {
			for wait := 0; wait < 3000 && !released(m, b); wait++ { // a constant is freed behind the flush
				time.Sleep(time.Millisecond)
			}
			if !released(m, b) {
				t.Fatalf("a weight is kept that was %s", what)
			}
		}
	}
}

// relaid is the CPU with another name for how weights lie.
type relaid struct{ ops.Library }

func (r relaid) Prepare(op ops.Op) (ops.Prepared, error) {
	p, err := r.Library.Prepare(op)
	p.Format += ", otherwise"
	return p, err
}

// T3, K5: a weight is shared with those alone that lay it out alike.
func TestWeightsAreKeyedByTheirLayout(t *testing.T) {
	m, rt := modelOfItsOwn(t)
	defer m.Close()
	if err := m.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	other := New(Config{Session: session, Executor: m.exec, Library: relaid{m.lib}, Engine: m.tensors.engine, Weights: m.tensors.source})
	defer other.Close()
	if err := other.Prepare(context.Background()); err != nil {
		t.Fatal(err)
	}
	kernels := map[string]bool{}
	for _, op := range m.list.Ops {
		for _, w := range op.Weights {
			if w.Role == oplist.Kernel {
				kernels[w.Name] = true
			}
		}
	}
	if got := other.Constants(); len(kernels) == 0 || got.Owners != int64(len(kernels)) || got.Hits == 0 {
		t.Errorf("%+v, want %d weights of another layout prepared and the rest shared", got, len(kernels))
	}
}
