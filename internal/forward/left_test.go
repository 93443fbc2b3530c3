package forward

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// waiting is the CPU, whose kernels wait for fill before they are laid out.
type waiting struct {
	ops.Library
	fill func()
}

func (w waiting) Prepare(op ops.Op) (ops.Prepared, error) {
	p, err := w.Library.Prepare(op)
	lay := p.Fill
	p.Fill = func(into []byte, weight []float32) error {
		w.fill()
		return lay(into, weight)
	}
	return p, err
}

// F4: who prepares weights leaves when its context ends, without the weight in hand. Those
// before it are kept, and another caller that waits for it prepares it.
func TestPreparationIsLeft(t *testing.T) {
	m, rt := modelOfItsOwn(t)
	defer m.Close()
	session, err := rt.Session(kiln.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(context.Background())
	begun, over := make(chan struct{}), make(chan struct{})
	var kept int64
	cfg := Config{Session: session, Executor: m.exec, Engine: m.tensors.engine, Weights: m.tensors.source}
	cfg.Library = waiting{m.lib, func() {
		kept = m.tensors.engine.Len()
		close(begun)
		leave()
		<-over
	}}
	left := New(cfg)
	defer left.Close()
	beside := make(chan error, 1)
	go func() {
		<-begun
		beside <- m.Prepare(context.Background())
	}()
	late := time.AfterFunc(10*time.Second, func() { close(over) })
	err = left.Prepare(ctx)
	others := <-beside
	if !late.Stop() {
		t.Fatal("the weight in hand is waited for")
	}
	close(over)
	if !errors.Is(err, context.Canceled) || others != nil || kept == 0 {
		t.Errorf("%v, another model: %v, %d weights were prepared before", err, others, kept)
	}
}

// The copy of a table, which may have a million rows, ends with its context.
func TestTableEndsWithItsContext(t *testing.T) {
	m, _ := modelOfItsOwn(t)
	defer m.Close()
	w := m.list.Weights[slices.IndexFunc(m.list.Weights, func(w oplist.Weight) bool { return w.Role != oplist.Kernel })]
	into := make([]byte, 4*w.Elements())
	untouched := func() bool { return !slices.ContainsFunc(into, func(b byte) bool { return b != 0 }) }
	ended, end := context.WithCancel(context.Background())
	end()
	if err := m.tensors.write(ended, into, ops.Prepared{}, w); !errors.Is(err, context.Canceled) || !untouched() {
		t.Errorf("%v, want that nothing is written", err)
	}
	if err := m.tensors.write(context.Background(), into, ops.Prepared{}, w); err != nil || untouched() {
		t.Errorf("%v, want %s", err, w.Name)
	}
}
