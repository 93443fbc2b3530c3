package encoder_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// odd is the CPU under another name, which refuses some operations.
type odd struct {
	*cpu.Backend
	name    string
	refuses func(ops.Op) bool
}

func (o *odd) Name() string { return o.name }

func (o *odd) Source(op ops.Op) (gpuexec.Source, error) {
	if o.refuses(op) {
		return gpuexec.Source{}, fmt.Errorf("%w: refused", fault.ErrUnsupported)
	}
	return o.Backend.Source(op)
}

var register = sync.OnceValue(func() error {
	plain, err := cpu.New("auto")
	if err != nil {
		return err
	}
	gpuexec.Register(&odd{plain, "padding", func(op ops.Op) bool { return op.Kind == ops.Attention }})
	gpuexec.Register(steps{plain})
	gpuexec.Register(&odd{plain, "few rows", func(op ops.Op) bool { return op.Kind == ops.MatMul && op.Dims[0] > 12 }})
	return nil
})

func device(t *testing.T, name string) encoder.Config {
	t.Helper()
	if err := register(); err != nil {
		t.Fatal(err)
	}
	return encoder.Config{Device: name, Workers: 2}
}

// E8: texts have the same bits packed in random company as padded and alone, from callers
// that come and leave as they like.
func TestPackedBits(t *testing.T) {
	b := newBERT()
	dir := put(t, b.files())
	texts := manyTexts(b)
	want, err := open(t, openRuntime(t), dir, device(t, "padding")).EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, openRuntime(t), dir, encoder.Config{Workers: 2})
	var callers sync.WaitGroup
	for caller := range 6 {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(caller)))
			for range 30 {
				var mine [][]int32
				var expected [][]float32
				for range 1 + random.IntN(20) {
					i := random.IntN(len(texts))
					mine, expected = append(mine, slices.Clone(texts[i])), append(expected, want[i])
				}
				ctx, cancel := context.WithCancel(bg)
				leaves := random.IntN(4) == 0
				if leaves {
					go func() { runtime.Gosched(); cancel() }()
				}
				got, err := e.EncodeTokens(ctx, mine)
				if err == nil && !equal(got, expected) || err != nil && !(leaves && errors.Is(err, context.Canceled)) {
					t.Errorf("other bits in company, or %v", err)
				}
				for _, ids := range mine { // they are the caller's again
					clear(ids)
				}
				cancel()
			}
		})
	}
	callers.Wait()
}

// What fails for one text is no error of those beside it.
func TestNeighboursOfAFailure(t *testing.T) {
	b := newBERT()
	dir := put(t, b.files())
	texts := manyTexts(b)
	want, err := open(t, openRuntime(t), dir, encoder.Config{}).EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	e := open(t, openRuntime(t), dir, device(t, "few rows"))
	var callers sync.WaitGroup
	for i, ids := range texts {
		callers.Go(func() {
			got, err := e.EncodeTokens(bg, [][]int32{ids})
			switch {
			case len(ids) <= 12 && (err != nil || !slices.Equal(got[0], want[i])):
				t.Errorf("%d tokens beside longer texts: %v", len(ids), err)
			case len(ids) > 12 && (!errors.Is(err, kiln.ErrUnsupported) || !strings.Contains(err.Error(), "texts[0]")):
				t.Errorf("%d tokens: %v", len(ids), err)
			}
		})
	}
	callers.Wait()
	_, err = e.EncodeTokens(bg, [][]int32{{2, 3}, make([]int32, 13), {2}})
	if typed, ok := errors.AsType[*fault.Error](err); !ok || typed.Key != "texts[1]" {
		t.Errorf("a call with one text that fails: %v", err)
	}
}

// Pairs of a batch that fails are scored one by one, each with its own types.
func TestPairsOfAFailure(t *testing.T) {
	dir := put(t, judge().judgeFiles())
	pairs, _, _ := pairsOf([][2]int{{3, 5}, {5, 3}, {0, 4}, {4, 0}, {1, 7}, {6, 2}})
	want, err := open(t, openRuntime(t), dir, encoder.Config{}).Score(bg, pairs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := open(t, openRuntime(t), dir, device(t, "few rows")).Score(bg, pairs)
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}

// A deadline ends the call that has it, with the context's error, and no other.
func TestDeadline(t *testing.T) {
	b := newBERT()
	texts := manyTexts(b)
	e := open(t, openRuntime(t), put(t, b.files()), encoder.Config{Workers: 1})
	want, err := e.EncodeTokens(bg, texts)
	if err != nil {
		t.Fatal(err)
	}
	var callers sync.WaitGroup
	for caller := range 20 {
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(bg, 0)
			if caller%2 == 0 {
				ctx = bg
			}
			defer cancel()
			got, err := e.EncodeTokens(ctx, texts)
			if caller%2 == 0 && (err != nil || !equal(got, want)) || caller%2 == 1 && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("caller %d: %v", caller, err)
			}
		})
	}
	callers.Wait()
}
