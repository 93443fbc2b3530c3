package devicetest

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// start begins launches behind other runs.
func start(t testing.TB, e *gpuexec.Executor, after []*gpuexec.Run, launches ...gpuexec.Launch) *gpuexec.Run {
	t.Helper()
	run, err := e.StartAfter(background, after, launches...)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// fragile is a backend whose next write can be made to fail.
type fragile struct {
	gpuexec.Backend
	next atomic.Pointer[error] // of the next write; nil = none
}

func (b *fragile) fail(err error) { b.next.Store(&err) }

func (b *fragile) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := b.Backend.Open(ctx, index)
	return fragileDevice{d, b}, err
}

type fragileDevice struct {
	gpuexec.Device
	of *fragile
}

func (d fragileDevice) OpenQueue() (gpuexec.Queue, error) {
	q, err := d.Device.OpenQueue()
	return fragileQueue{q, d.of}, err
}

type fragileQueue struct {
	gpuexec.Queue
	of *fragile
}

func (q fragileQueue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	if err := q.of.next.Swap(nil); err != nil {
		return *err
	}
	return q.Queue.Write(m, offset, from)
}

// one is a list of a run.
func one(r *gpuexec.Run) []*gpuexec.Run { return []*gpuexec.Run{r} }

// openDeep gives an executor with room for many runs, that the test closes or is closed
// at its end.
func openDeep(t testing.TB, backend gpuexec.Backend) *gpuexec.Executor {
	t.Helper()
	e, err := gpuexec.Open(background, gpuexec.Config{Backend: backend, Workers: 3, Queue: 1 << 15})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(background); err != nil {
			t.Error(err)
		}
	})
	return e
}

// waited is what became of a run: nil, or one of these errors, which the run has itself or
// by a run that it waits for.
func waited(t testing.TB, r *gpuexec.Run, allowed ...error) error {
	t.Helper()
	err := r.Wait(background)
	if err != nil && !slices.ContainsFunc(allowed, func(kind error) bool { return errors.Is(err, kind) }) {
		t.Errorf("%v, want none or %v", err, allowed)
	}
	return err
}

// sequences: copies run in the order of their sequence, beside the launches of a kernel,
// and count as no launch.
func sequences(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDevice(t, backend, 1)
	k := build(t, e, sources[0])
	defer k.Release()
	l, held := launchOf(t, e, k)
	b := allocate(t, e, 64)
	held = append(held, b)
	defer releaseAll(held)
	var first, second [64]byte
	if err := e.Submit(background, gpuexec.CopyTo(b, 0, []byte{1, 2, 3}), l, gpuexec.CopyFrom(b, 0, first[:]),
		gpuexec.CopyTo(b, 1, []byte{7}), l, gpuexec.CopyFrom(b, 0, second[:])); err != nil {
		t.Fatal(err)
	}
	if first != [64]byte{1, 2, 3} || second != [64]byte{1, 7, 3} {
		t.Errorf("%v, then %v came back", first, second)
	}
	if n := e.Stats().Launches; n != 2 {
		t.Errorf("%d launches, want 2", n)
	}
	for what, wrong := range map[string]gpuexec.Launch{
		"past the end": gpuexec.CopyTo(b, 60, first[:5]), "before the start": gpuexec.CopyFrom(b, -1, first[:1]),
		"too much": gpuexec.CopyFrom(b, 0, make([]byte, 65)), "no buffer": gpuexec.CopyTo(nil, 0, nil), "nothing": {},
		"a copy's argument": {Kernel: k, Grid: gpuexec.Size{1}, Args: gpuexec.CopyTo(b, 0, nil).Args},
	} {
		if err := e.Submit(background, gpuexec.CopyTo(b, 0, []byte{9}), wrong); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if err := e.Read(background, b, 0, first[:]); err != nil || first[0] != 1 {
		t.Errorf("%v, or a copy beside a wrong one was made", err)
	}
}

// order: E1: a run begins when those that it waits for have ended, on whatever worker: ten
// thousand in a chain, each with what the one before has left; and a run behind many.
func order(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	e := openDeep(t, backend)
	b := allocate(t, e, 4)
	defer b.Release()
	const length = 10_000
	got := make([][4]byte, length)
	var last []*gpuexec.Run
	var all []*gpuexec.Run
	for i := range length {
		next := gpuexec.CopyFrom(b, 0, got[i][:])
		if i%2 == 0 {
			next = gpuexec.CopyTo(b, 0, binary.LittleEndian.AppendUint32(nil, uint32(i)))
		}
		last = one(start(t, e, last, next))
		all = append(all, last...)
	}
	if err := start(t, e, append(all, all...)).Wait(background); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < length; i += 2 {
		if n := binary.LittleEndian.Uint32(got[i][:]); n != uint32(i-1) {
			t.Fatalf("run %d found what run %d wrote", i, n)
		}
	}
	if n := e.Stats().Queued; n != 0 {
		t.Errorf("%d runs wait, want none", n)
	}
	if err := start(t, e, all).Wait(background); err != nil {
		t.Errorf("behind runs that have ended: %v", err)
	}
	other := openDevice(t, backend, 1)
	for what, run := range map[string]*gpuexec.Run{"none": nil, "another executor's": start(t, other, nil)} {
		if _, err := e.StartAfter(background, one(run)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("behind %s: %v, want ErrInvalid", what, err)
		}
	}
}

// failures: E1: a run behind one that failed, or was cancelled, does not begin, nor does one
// behind that; each says why, once, and the executor goes on.
func failures(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	broken := &fragile{Backend: backend}
	e := openDeep(t, broken)
	b := allocate(t, e, 1<<20)
	defer b.Release()
	cause := errors.New("broken")
	broken.fail(cause)
	run := start(t, e, nil, gpuexec.CopyTo(b, 0, []byte{1}))
	for range 5 {
		behind := start(t, e, one(run), gpuexec.CopyTo(b, 0, []byte{1}))
		if err := behind.Wait(background); !errors.Is(err, cause) {
			t.Errorf("behind a run that failed: %v", err)
		}
		run = behind
	}
	bytes := make([]byte, b.Bytes())
	cancelled := 0
	for range 20 {
		first := start(t, e, nil, slices.Repeat([]gpuexec.Launch{gpuexec.CopyTo(b, 0, bytes)}, 20)...)
		middle := start(t, e, one(first))
		next := start(t, e, []*gpuexec.Run{first, middle}, gpuexec.CopyTo(b, 0, []byte{1}), gpuexec.CopyFrom(b, 0, []byte{0}))
		last := start(t, e, one(next), gpuexec.CopyFrom(b, 0, []byte{0}))
		middle.Cancel()
		err := waited(t, middle, context.Canceled)
		for _, r := range []*gpuexec.Run{next, last} {
			behind := r.Wait(background)
			var typed *fault.Error
			switch {
			case err == nil && behind == nil: // cancelled too late
			case !errors.Is(behind, context.Canceled) || !errors.As(behind, &typed) || typed.Op != "executor: earlier run" || typed.Err != err:
				t.Fatalf("behind a run that ended with %v: %v", err, behind)
			}
		}
		if err != nil {
			cancelled++
		}
		if err := first.Wait(background); err != nil {
			t.Fatal(err)
		}
		var wrote [1]byte
		if err := e.Read(background, b, 0, wrote[:]); err != nil || last.Wait(background) != nil && wrote[0] != 0 {
			t.Fatalf("%v, or a copy behind a run that was cancelled was made", err)
		}
	}
	if err := start(t, e, nil).Wait(background); err != nil {
		t.Error(err)
	}
	t.Logf("%d of 20 were cancelled in time", cancelled)
}

// crowd: E1: many goroutines start runs behind each other's, cancel some and leave others.
func crowd(t *testing.T, backend gpuexec.Backend, sources []gpuexec.Source) {
	e := openDeep(t, backend)
	k := build(t, e, sources[0])
	l, held := launchOf(t, e, k)
	var mu sync.Mutex
	var recent []*gpuexec.Run // of every goroutine
	var wg sync.WaitGroup
	for i := range 32 {
		b := allocate(t, e, 64)
		held = append(held, b)
		wg.Go(func() {
			var mine []*gpuexec.Run
			for n := range 20 {
				mu.Lock()
				behind := append(slices.Clone(recent), mine...)
				mu.Unlock()
				run, err := e.StartAfter(background, behind, gpuexec.CopyTo(b, 0, []byte{byte(n)}), l, gpuexec.CopyFrom(b, 0, make([]byte, 64)))
				if err != nil {
					t.Error(err)
					return
				}
				if mine = one(run); n%7 == i%7 {
					run.Cancel()
					mine = nil // what comes next waits for others
				}
				mu.Lock()
				if recent = append(recent, run); len(recent) > 4 {
					recent = recent[1:]
				}
				mu.Unlock()
				if n%3 == 0 {
					waited(t, run, context.Canceled)
				}
			}
		})
	}
	wg.Wait()
	releaseAll(held) // runs that were left keep what they need
	k.Release()
	if err := start(t, e, nil).Wait(background); err != nil {
		t.Error(err)
	}
}

// ends: E1: Close amid a chain, or the loss of the device, ends every run of it; nothing is
// left that waits.
func ends(t *testing.T, backend gpuexec.Backend, _ []gpuexec.Source) {
	for round := range 6 {
		breaks := &fragile{Backend: backend}
		e := openDeep(t, breaks)
		b := allocate(t, e, 1<<16)
		bytes := make([]byte, b.Bytes())
		var chain []*gpuexec.Run
		for i := range 300 {
			chain = append(chain, start(t, e, chain[max(0, i-2):i], gpuexec.CopyTo(b, 0, bytes)))
		}
		kind, end := fault.ErrClosed, func() { _ = e.Close(background) }
		if round%2 == 0 {
			kind, end = fault.ErrDeviceLost, func() { breaks.fail(fault.ErrDeviceLost) }
		}
		for range round * 20 {
			_ = chain[round].Wait(background)
		}
		end()
		failed := false
		for _, run := range chain {
			err := waited(t, run, kind)
			if failed && err == nil {
				t.Error("a run has run behind one that failed")
			}
			failed = err != nil
		}
		if kind == fault.ErrDeviceLost {
			for e.Stats().Restarts == 0 { // the chain may have run before
				_ = e.Write(background, b, 0, bytes)
			}
			if err := e.Ready(background); err != nil {
				t.Fatal(err)
			}
			fresh := allocate(t, e, 4)
			if err := start(t, e, one(start(t, e, nil)), gpuexec.CopyTo(fresh, 0, bytes[:4])).Wait(background); err != nil {
				t.Errorf("on the device that came back: %v", err)
			}
			fresh.Release()
		}
		b.Release()
		if n := e.Stats().Queued; n != 0 {
			t.Errorf("%d runs wait, want none", n)
		}
	}
}
