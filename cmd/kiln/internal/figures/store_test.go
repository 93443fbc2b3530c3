package figures

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/measure"
)

// The sides take turns at going first, what they did is undone each time, and the quickest of
// each counts.
func TestInTurn(t *testing.T) {
	var order string
	did := func(what string, err error) func() error {
		return func() error {
			order += what
			return err
		}
	}
	slow := func() error {
		order += "a"
		for began := time.Now(); time.Since(began) < 2*time.Millisecond; {
		}
		return nil
	}
	f, err := inTurn(context.Background(), measure.Figure{}, 3, 2, firstTwo, undone(slow, did("A", nil)), undone(did("b", nil), did("B", nil)))
	if err != nil || f.N != 3 || f.Ratio < 10 || order != "aAbBbBaAaAbBbBaAaAbBbBaA" {
		t.Errorf("%+v after %q, %v", f, order, err)
	}
	broken := errors.New("broken")
	for i := range 4 {
		steps := [4]func() error{nothing, nothing, nothing, nothing}
		steps[i] = did("", broken)
		if _, err := inTurn(context.Background(), measure.Figure{}, 3, 1, firstTwo, undone(steps[0], steps[2]), undone(steps[1], steps[3])); !errors.Is(err, broken) {
			t.Errorf("step %d fails: %v", i, err)
		}
	}
}

// What is measured as a load is one: it finds what was stored.
func TestLoading(t *testing.T) {
	if f, err := loading(context.Background(), t.TempDir(), 1<<10, 1e9); err != nil || f.N == 0 || !f.Holds() {
		t.Errorf("%+v, %v", f, err)
	}
}

// A full store is measured as such: each put evicts, and what is opened was filled.
func TestFull(t *testing.T) {
	figures, err := full(context.Background(), 40, 20)
	if err != nil || len(figures) != 7 {
		t.Fatalf("%+v, %v", figures, err)
	}
	for _, f := range figures {
		if f.N == 0 || f.Ratio <= 0 {
			t.Errorf("%+v", f)
		}
	}
}

// A get, and its bare system calls, find what was stored.
func TestGetting(t *testing.T) {
	if f, err := getting(context.Background(), t.TempDir(), 1<<10, 1e9); err != nil && !errors.Is(err, fault.ErrUnsupported) || err == nil && f.N == 0 {
		t.Errorf("%+v, %v", f, err)
	}
}
