package artefacts_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// F4, F9: when the linger time is over the place is free, though the creator heeds
// no context.
func TestLingerOfTheStubborn(t *testing.T) {
	cfg := entries(4)
	cfg.Linger = time.Minute
	bubble(t, cfg, func(t *testing.T, c room) {
		g := gate()
		ctx, cancel := context.WithCancel(background)
		a := c.calls(ctx, 1, "k", maker{wait: g, stubborn: true})
		cancel()
		want(t, "caller", <-a, "error canceled")
		synctest.Wait()
		want(t, "len while it lingers", c.Len(), 1)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		want(t, "len afterwards", c.Len(), 0)
		close(g)
	})
}

// C11: a kernel whose artefacts came and went more than once is unused all the same.
func TestKernelUsedAgain(t *testing.T) {
	c := open(t, entries(1))
	for _, key := range []string{"p", "q", "r"} {
		c.get(key, maker{kernel: "x"})
		c.fill("other " + key) // evicts it
		c.eventuallyFreed(key, 1)
	}
	c.get("s", maker{kernel: "y"})
	eventually(t, "kernels", c.Kernels, 1)
	c.eventuallyFreed("kernel:x", 1)
}

// leavingContext ends when its Done is asked for: a call that looks at Err before has
// begun then, and waits.
type leavingContext struct {
	context.Context
	leave func()
}

func (c leavingContext) Done() <-chan struct{} { c.leave(); return c.Context.Done() }

// leaving has a caller of Get leave before the turn that answers it.
func leaving(t *testing.T, c *artefacts.Cache, get func(context.Context) error) {
	t.Helper()
	goOn := artefacts.Stall(c)
	ctx, cancel := context.WithCancel(background)
	err := get(leavingContext{ctx, cancel})
	goOn()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left: %v", err)
	}
}

// F4: a caller that leaves before it is answered leaves nothing: no flight that
// nobody began, no seat on another's.
func TestLeavingBeforeTheAnswer(t *testing.T) {
	c := open(t, entries(4))
	get := func(ctx context.Context) error {
		_, _, err := c.Get(ctx, c.request(c.Cache, "k", maker{}))
		return err
	}
	leaving(t, c.Cache, get)
	eventually(t, "len", c.Len, 0)
	want(t, "creations", c.count(c.mu.creations, "k"), 0)

	first, leave := context.WithCancel(background)
	done := make(chan string, 1) // one answer
	go func() { done <- c.getIn(first, "k", maker{wait: gate()}) }()
	eventually(t, "creations", func() int { return c.count(c.mu.creations, "k") }, 1)
	leaving(t, c.Cache, get)
	leave()
	want(t, "the first caller", <-done, "error canceled")
	eventually(t, "aborted", func() int { return c.count(c.mu.aborted, "k") }, 1)
	want(t, "next", c.get("k", maker{}), "k by=miss")
}

// P11, F4: a blob that was being loaded when everybody left is not to blame.
func TestDesertedWhileLoading(t *testing.T) {
	s := newShelf(t)
	s.mu.blobs["test/k"] = "blob:k"
	bubble(t, artefacts.Config{Store: s}, func(t *testing.T, c room) {
		ctx, cancel := context.WithCancel(background)
		r := c.request(c.Cache, "k", maker{})
		r.Load = func(ctx context.Context, _ []byte) (artefacts.Built, error) {
			<-ctx.Done()
			return artefacts.Built{}, ctx.Err()
		}
		done := make(chan string, 1) // one answer
		go func() { done <- said(c.Get(ctx, r)) }()
		synctest.Wait()
		cancel()
		want(t, "caller", <-done, "error canceled")
		synctest.Wait()
		want(t, "entries, finds, open claims", s.counts(), [3]int{1, 1, 0})
		want(t, "creations", c.count(c.mu.creations, "k"), 0)
	})
}

// C1: what was built when the capacity became 0 is not stored either.
func TestNotStoredWhenDisabled(t *testing.T) {
	s := newShelf(t)
	bubble(t, stored(s, 4), func(t *testing.T, c room) {
		g := gate()
		a := c.calls(background, 1, "k", maker{wait: g})
		c.setEntries(0)
		close(g)
		want(t, "caller", <-a, "k by=miss")
		c.settle()
		want(t, "entries, finds, open claims", s.counts(), [3]int{0, 1, 0})
	})
}

// C8: what is made from a blob is a persistent hit, whatever kernels it needs.
func TestPersistentHitWithKernels(t *testing.T) {
	s := newShelf(t)
	s.mu.blobs["test/p"] = "blob:p"
	c := open(t, stored(s, 4))
	c.get("q", maker{kernel: "x"})
	r := c.request(c.Cache, "p", maker{})
	r.Load = func(ctx context.Context, _ []byte) (artefacts.Built, error) {
		v, err := c.Kernel(ctx, artefacts.Request{Key: "x", Create: func(context.Context) (artefacts.Built, error) { panic("unreachable") }})
		return artefacts.Built{Value: v}, err
	}
	want(t, "p", said(c.Get(background, r)), "x by=persistent_hit")
}

// moody is a context whose Value panics.
type moody struct{ context.Context }

func (moody) Value(any) any { panic("made to panic") }

// C5: a hit whose context panics leaves no lease behind.
func TestHitUnderAContextThatPanics(t *testing.T) {
	c := open(t, entries(1))
	c.get("k", maker{})
	func() {
		defer func() { _ = recover() }()
		c.getIn(moody{background}, "k", maker{})
	}()
	c.fill("other") // evicts it
	c.eventuallyFreed("k", 1)
}
