package constants

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/limit"
)

// What happens at the second look: to the second owner, at the second removal, of the second
// holder.

// F5, T6: who waits for a tensor waits for the one that inherits it: a circle through that
// one is answered with ErrCycle.
func TestCircleThroughAnHeir(t *testing.T) {
	_, e := open(t, Config{})
	first := add(t, e, "k", 8, Options{})
	heirs := ask(t, first, "k", 8, Options{CanOwn: true})
	other := add(t, e, "l", 8, Options{})
	before, waited := waiting(first), make(chan error, 1)
	go func() { // the owner of l waits for k, as second in line
		out, err := e.GetOrAdd(other.Context(), key("k"), 8, Options{CanOwn: true})
		out.giveBack()
		waited <- err
	}()
	waitFor(t, func() bool { return waiting(first) == before+1 })
	first.Abandon()
	heir := (<-heirs).Owner
	if heir == nil {
		t.Fatal("the one that waited longest did not inherit")
	}
	ctx, cancel := context.WithTimeout(heir.Context(), 10*time.Second)
	defer cancel()
	if _, err := e.GetOrAdd(ctx, key("l"), 8, Options{}); !errors.Is(err, fault.ErrCycle) {
		t.Errorf("the heir waits for one that waits for it: %v, want fault.ErrCycle", err)
	}
	heir.Abandon()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	other.Abandon()
}

// T6: who cannot compute gets the error that the owner failed with, also where heirs that
// find no room were asked in between.
func TestErrorPastHeirsWithoutRoom(t *testing.T) {
	_, e := open(t, Config{Capacity: [kinds]limit.Limit{CPU: limit.Of(4)}})
	put(t, e, "other", 2*mib, Options{}, nil)
	o := add(t, e, "k", mib, Options{})
	large := ask(t, o, "k", 3*mib, Options{CanOwn: true})
	before, waited := waiting(o), make(chan error, 1)
	go func() {
		_, err := e.GetOrAdd(context.Background(), key("k"), mib, Options{})
		waited <- err
	}()
	waitFor(t, func() bool { return waiting(o) == before+1 })
	boom := errors.New("boom")
	o.Fail(boom)
	if out := <-large; out.Bypass != Full {
		t.Errorf("3 MiB beside 2 of 4: %+v, want bypass full", out)
	}
	if err := <-waited; !errors.Is(err, boom) {
		t.Errorf("the other waiter: %v, want what the owner failed with", err)
	}
}

// F10: an heir computes again what failed.
func TestHeirComputesAgain(t *testing.T) {
	c, e := open(t, Config{})
	o := add(t, e, "k", 8, Options{})
	heirs := ask(t, o, "k", 8, Options{CanOwn: true})
	o.Fail(errors.New("no"))
	(<-heirs).Owner.Abandon()
	wantAgain(t, c, map[string]uint64{"failed": 1})
}

// Q5, S3: the memory limit takes no tensor that somebody came to lease after it was listed.
func TestShrinkSparesWhatIsLeasedMeanwhile(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", 8, Options{}, nil)
	listed := e.unused(every)
	l, _ := e.Lookup(key("k"))
	defer l.End()
	freed, err := actors.Ask(context.Background(), e.ref, func(r actors.Reply[pressure.Freed]) message { return shrinkMsg{listed, 8, r} })
	if err != nil || len(listed) != 1 || freed.Bytes != 0 || !l.Resident() {
		t.Errorf("%d listed, %d bytes freed, %v; resident: %v", len(listed), freed.Bytes, err, l.Resident())
	}
}

// C13, T8: a callback is told of one removal: not of that which follows when the tensor has
// become resident again.
func TestCallbackOfAnEarlierRemoval(t *testing.T) {
	_, e := open(t, small)
	var runs, other int
	removals := make(chan string, 8)
	told := func(who string) func(Removal) {
		return func(why Removal) { removals <- who + " " + string(why) }
	}
	l := counted(t, e, "cheap", 2, 1, &runs)
	defer l.End()
	first, ok := l.Hold(told("first"))
	if !ok {
		t.Fatal("not held")
	}
	defer first.Drop()
	counted(t, e, "dear", 4, 10, &other).End() // displaces it
	if _, err := e.Remove(context.Background(), key("dear")); err != nil {
		t.Fatal(err)
	}
	counted(t, e, "cheap", 2, 1, &runs).End() // has it become resident again
	second, ok := l.Hold(told("second"))
	if !ok {
		t.Fatal("not held when it was back")
	}
	defer second.Drop()
	if _, err := e.Remove(context.Background(), key("cheap")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	e.shell.gone.Fence(func() { close(done) })
	<-done
	close(removals)
	var all []string
	for r := range removals {
		all = append(all, r)
	}
	if len(all) != 2 || all[0] != "first "+string(Evicted) || all[1] != "second "+string(Removed) {
		t.Errorf("told of %v", all)
	}
}

// T8: a reference that is dropped while others are told is told of nothing any more.
func TestDroppedWhileOthersAreTold(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", 8, Options{}, nil)
	l, _ := e.Lookup(key("k"))
	defer l.End()
	var later *Held
	first, ok := l.Hold(func(Removal) { later.Drop() })
	if !ok {
		t.Fatal("not held")
	}
	defer first.Drop()
	if later, ok = l.Hold(func(Removal) { t.Error("told after Drop") }); !ok {
		t.Fatal("not held")
	}
	if _, err := e.Remove(context.Background(), key("k")); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	e.shell.gone.Fence(func() { close(done) })
	<-done
}

// An ownership that has ended is not kept by the context that it was asked for with, which may
// live for as long as the process.
func TestEndedOwnershipIsForgotten(t *testing.T) {
	_, e := open(t, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	out, err := e.GetOrAdd(ctx, key("k"), 8, Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := weak.Make(out.Owner)
	out.Owner.Abandon()
	out = Outcome{}
	waitFor(t, func() bool { runtime.GC(); return seen.Value() == nil })
}
