package encoder_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// steps is the CPU, which tells the round under way of each of its calls.
type steps struct{ *cpu.Backend }

// round is one opening of an encoder, in which something happens at one of the steps.
type round struct {
	left    atomic.Int64 // steps before that one
	happens func()
	writing atomic.Int64  // weights that are being written into the device's memory
	torn    atomic.Bool   // the device was closed meanwhile
	closing chan struct{} // closed when the device is
}

var underWay atomic.Pointer[round]

func step() {
	if r := underWay.Load(); r.left.Add(-1) == -1 {
		r.happens()
	}
}

func (steps) Name() string { return "steps" }

func (s steps) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	step()
	d, err := s.Backend.Open(ctx, index)
	return &stepDevice{d}, err
}

func (s steps) Source(op ops.Op) (gpuexec.Source, error) {
	step()
	return s.Backend.Source(op)
}

func (s steps) Prepare(op ops.Op) (ops.Prepared, error) {
	step()
	p, err := s.Backend.Prepare(op)
	write := func(fill func([]byte, []float32) error) func([]byte, []float32) error {
		return func(into []byte, weight []float32) error {
			r := underWay.Load()
			r.writing.Add(1)
			defer r.writing.Add(-1)
			if step(); r.left.Load() == -1 { // it has happened just now: it takes its time
				select {
				case <-r.closing:
					return errors.New("the memory is gone")
				case <-time.After(50 * time.Millisecond):
				}
			}
			return fill(into, weight)
		}
	}
	p.Fill, p.FillTurned = write(p.Fill), write(p.FillTurned)
	return p, err
}

type stepDevice struct{ gpuexec.Device }

func (d *stepDevice) Alloc(n int64) (gpuexec.Memory, error) {
	step()
	return d.Device.Alloc(n)
}

func (d *stepDevice) Compile(ctx context.Context, src gpuexec.Source) (gpuexec.Program, error) {
	step()
	return d.Device.Compile(ctx, src)
}

func (d *stepDevice) OpenQueue() (gpuexec.Queue, error) {
	step()
	q, err := d.Device.OpenQueue()
	return &stepQueue{q}, err
}

func (d *stepDevice) Close() error {
	r := underWay.Load()
	close(r.closing)
	for r.writing.Load() > 0 {
		r.torn.Store(true)
		time.Sleep(time.Millisecond)
	}
	return d.Device.Close()
}

type stepQueue struct{ gpuexec.Queue }

func (q *stepQueue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, grid, block gpuexec.Size) error {
	step()
	return q.Queue.Launch(ctx, p, args, grid, block)
}

func (q *stepQueue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	step()
	return q.Queue.Read(m, offset, into)
}

// F8, E1: a runtime is closed at any step of an encoder's opening and first texts. They give
// ErrClosed, nothing stays open, and no memory goes that somebody writes.
func TestRuntimeClosedAtEachStep(t *testing.T) {
	b := newBERT()
	dir := put(t, b.files())
	if err := register(); err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(bg)
	cancel()
	opens := func(at int64) (steps int64) {
		rt, err := kiln.Open(kiln.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := &round{happens: func() { _ = rt.Close(gone) }, closing: make(chan struct{})}
		r.left.Store(at)
		underWay.Store(r)
		e, err := encoder.Open(bg, rt, dir, encoder.Config{Device: "steps", Workers: 2})
		if err == nil {
			_, err = e.EncodeTokens(bg, shortTexts)
			if err := e.Close(bg); err != nil {
				t.Errorf("step %d: %v", at, err)
			}
		}
		steps = at - r.left.Load()
		if happened := steps > at; happened && err != nil && !errors.Is(err, kiln.ErrClosed) || !happened && err != nil {
			t.Errorf("step %d: %v", at, err)
		}
		if err := rt.Close(bg); err != nil || len(rt.Sessions()) > 0 || r.torn.Load() {
			t.Errorf("step %d: %v, %d sessions, memory that went while it was written: %v", at, err, len(rt.Sessions()), r.torn.Load())
		}
		return steps
	}
	const never = 1 << 40
	all := opens(never)
	if all < 100 {
		t.Fatalf("%d steps in all", all)
	}
	for at := range all {
		opens(at)
	}
	maps, _ := os.ReadFile("/proc/self/maps") // where there is one
	if strings.Contains(string(maps), dir) {
		t.Error("the file of weights is mapped still")
	}
}

// C13: what an opening that fails at its end has prepared goes: its session, and its hold on the
// weights, which are constants like others. A dearer one displaces them, and nobody leases them.
func TestFailedOpeningHoldsNothing(t *testing.T) {
	t.Setenv("ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY", "cpu:1:COST")
	rt := openRuntime(t)
	files := newBERT().files()
	files["vocab.txt"] = slices.Concat(bytes.Repeat([]byte("w\n"), 60), files["vocab.txt"])
	if _, err := encoder.Open(bg, rt, put(t, files), encoder.Config{Workers: 2}); !errors.Is(err, kiln.ErrInvalid) {
		t.Fatalf("%v, want that the tokenizer has ids beyond the model", err)
	}
	prepared := rt.Constants().Stats().Len
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	dear, _, err := engine.Get(bg, constants.Key{ID: "dear"}, 1<<20, constants.Options{Cost: time.Hour},
		func(context.Context) (constants.Value, error) { return constants.Value{Bytes: 1 << 20}, nil })
	if err != nil {
		t.Fatal(err)
	}
	dear.End()
	s := rt.Constants().Stats()
	if sessions := len(rt.Sessions()); prepared == 0 || s.Len > 1 || s.Leased > 0 || sessions > 0 {
		t.Errorf("%d weights were prepared, %d are kept beside the dear one, %d bytes are leased, and %d sessions are open", prepared, s.Len-1, s.Leased, sessions)
	}
}

// F4: the end of an opening's context ends the reading of its tokenizer.
func TestTokenizerIsLeft(t *testing.T) {
	rt := openRuntime(t)
	open(t, rt, put(t, newBERT().files()), encoder.Config{}) // opens the device, which an ended context does not
	files := newBERT().files()
	files["tokenizer.json"] = []byte("what nobody gets to see")
	gone, cancel := context.WithCancel(bg)
	cancel()
	if _, err := encoder.Open(gone, rt, put(t, files), encoder.Config{}); !errors.Is(err, context.Canceled) || errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("%v, want the error of the context alone", err)
	}
}

// A text of one encoder is computed while another one, which is being opened, waits for a file
// of weights, though there is one worker: files may be slow.
func TestTextsWhileWeightsAreRead(t *testing.T) {
	if err := register(); err != nil {
		t.Fatal(err)
	}
	rt, err := kiln.Open(kiln.Config{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	r := &round{closing: make(chan struct{})}
	r.left.Store(1 << 40)
	underWay.Store(r)
	b := newBERT()
	var encoders []*encoder.Encoder
	opens := func() {
		for _, w := range b.tensors { // other weights than those that are prepared already
			w.values[0]++
		}
		e, err := encoder.Open(bg, rt, put(t, b.files()), encoder.Config{Device: "steps"})
		if err != nil {
			t.Fatal(err)
		}
		encoders = append(encoders, e)
	}
	opens()
	computed := false
	r.happens = func() {
		if r.writing.Load() == 0 {
			r.left.Store(0) // the next step
			return
		}
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if _, err := encoders[0].EncodeTokens(ctx, shortTexts); err != nil {
			t.Error(err)
		}
		computed = true
	}
	r.left.Store(0)
	opens()
	for _, e := range encoders {
		if err := e.Close(bg); err != nil {
			t.Error(err)
		}
	}
	if err := rt.Close(bg); err != nil || !computed {
		t.Errorf("%v, computed: %v", err, computed)
	}
}

// F1, F8: of encoders that are opened at once on one runtime, some are left while they are opened
// and others are closed while they compute. The rest give right embeddings, and nothing stays.
func TestManyOpenAtOnce(t *testing.T) {
	rt := openRuntime(t)
	dirs := []string{put(t, newBERT().files()), put(t, newBERT().files())}
	want, err := open(t, rt, dirs[0], encoder.Config{}).EncodeTokens(bg, shortTexts)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			ctx, leave := context.WithCancel(bg)
			if i%4 == 1 { // at any moment
				all.Go(func() {
					for range i * i {
						runtime.Gosched()
					}
					leave()
				})
			}
			defer leave()
			e, err := encoder.Open(ctx, rt, dirs[i/2%2], encoder.Config{Workers: 1 + i%3})
			if err != nil {
				if i%4 != 1 || !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
				return
			}
			if i%4 == 2 {
				all.Go(func() { _ = e.Close(bg) })
			}
			got, err := e.EncodeTokens(bg, shortTexts)
			if err != nil && (i%4 != 2 || !errors.Is(err, kiln.ErrClosed)) {
				t.Errorf("%d: %v", i, err)
			}
			if err == nil && !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("%d: %v, want %v", i, got, want)
			}
			if err := e.Close(bg); err != nil {
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	all.Wait()
	if n := len(rt.Sessions()); n != 1 {
		t.Errorf("%d sessions, want that of the first encoder", n)
	}
}
