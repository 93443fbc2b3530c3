//go:build unix

package blobstore_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P8: a claim waits for its context only, and Close gives claims back.
func TestClaims(t *testing.T) {
	r := newRig(t)
	a, b := r.open("d", mib), r.open("d", mib)
	_, c, miss, err := a.Obtain(background, backend, "k")
	r.want("claim", words(c.Token() > 0, miss.Reason, err), "true absent <nil>")
	first := c.Token()
	ctx, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	_, _, _, err = b.Obtain(ctx, backend, "k")
	r.want("context", err, context.DeadlineExceeded)
	c.Release()
	c.Release()
	_, c, _, err = b.Obtain(background, backend, "k")
	r.want("token grows", words(c.Token() >= first, err), "true <nil>")
	r.must(b.Store.Close(background))
	_, c, _, err = a.Obtain(background, backend, "k")
	r.want("after close", words(c.Token() >= first, err), "true <nil>")
	r.must(c.Save(background, []byte("v"), time.Second))
	r.want("stored", a.get("k"), "v")
	r.fault("open", syscall.EIO)
	_, c, miss, err = a.Obtain(background, backend, "j")
	r.want("trouble", words(c.Token(), miss.Reason, err), "0 degraded <nil>")
	r.want("trouble", said(c.Save(background, nil, 0)), "refused reason=degraded")
}

// P5: tmp/ alone goes while we run: whoever misses builds without a lease, and a
// later store makes it again.
func TestStagingGoes(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	r.must(os.RemoveAll(r.path("d/tmp")))
	_, c, miss, err := s.Obtain(background, backend, "k")
	r.want("obtain", words(c.Token(), miss.Reason, err), "0 absent <nil>")
	r.want("save", said(c.Save(background, []byte("v"), 0)), "refused reason=degraded")
	r.clock(10 * time.Minute)
	r.want("put", s.put("k", "v"), "ok")
	_, c, miss, err = s.Obtain(background, backend, "j")
	r.want("obtain", words(c.Token() > 0, miss.Reason, err), "true absent <nil>")
	c.Release()
	r.want("audit", s.audit(), "ok")
}

// P11: of two that read a blob before either entered, the one that finds the mark
// of its death sets it aside, and the mark with it; the other does not enter either.
func TestReadBeforeItWasSetAside(t *testing.T) {
	for _, layer := range []string{"d", "base"} {
		r := newRig(t)
		aborts := func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }
		base := r.open("base", mib)
		based := func(c *blobstore.Config) { c.Bases = []string{r.path("base")} }
		a := r.open("d", mib, aborts, based)
		if layer == "d" {
			r.want("put", a.put("k", "v"), "ok")
		} else {
			r.want("put", base.put("k", "v"), "ok")
		}
		blob, _, err := a.Get(background, backend, "k")
		r.must(err)
		leave, _, err := a.Enter(background, backend, blob)
		r.must(err)
		mark := r.path("d/mark/" + r.names("d/mark")[0])
		text := r.read(mark)
		leave()
		r.write(mark, text) // as of a process that died inside: nobody has its lock
		b := r.open("d", mib, aborts, based)
		late, _, err := b.Get(background, backend, "k")
		r.must(err)
		for name, s := range map[string]*shop{"first": a, "second": b} {
			_, miss, err := s.Enter(background, backend, late)
			r.want(name+" of "+layer, words(miss.Reason, err), "quarantined <nil>")
		}
	}
}

// P8: who asks for a key and finds it absent, and then gets the right to build it after
// another has stored it and gone, is given what was stored.
func TestStoredBeforeTheClaim(t *testing.T) {
	r := newRig(t)
	b := r.open("d", mib)
	armed := false
	a := r.open("d", mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS {
			return vfs.Watch(vfs.Dir(root), func(op string) error {
				if armed && op == "rename" { // by which the lease gets its name
					armed = false
					r.want("put", b.put("k", "v"), "ok")
				}
				return nil
			})
		})
	})
	armed = true
	blob, c, miss, err := a.Obtain(background, backend, "k")
	r.want("obtain", words(string(blob.Payload), c == nil, miss.Reason, err), "v true  <nil>")
	if c != nil {
		c.Release()
	}
	next, c, err := b.Succeed(background, backend, "k", blob)
	r.want("the lease was given back", words(next == nil, c != nil, err), "true true <nil>")
	c.Release()
}

// P8, F3: a hash that panics while a claim is given leaves no claim behind that nobody
// can release.
func TestPanicWhileAClaimIsGiven(t *testing.T) {
	r := newRig(t)
	var calls, at atomic.Int64
	s := r.open("d", mib, func(c *blobstore.Config) {
		c.Hash = func(string) uint64 {
			if calls.Add(1) == at.Load() {
				panic("hash")
			}
			return 7
		}
	})
	other := r.open("d", mib)
	for n := range int64(5) {
		calls.Store(0)
		at.Store(n + 1)
		obtain := func(s *shop) error {
			defer func() { _ = recover() }()
			ctx, cancel := context.WithTimeout(background, 3*time.Second)
			defer cancel()
			_, c, _, err := s.Obtain(ctx, backend, "k")
			if c != nil {
				c.Release()
			}
			return err
		}
		r.want("no panic, or no claim", obtain(s), nil)
		r.want("another process", obtain(other), nil)
	}
}

// joins is a caller that goes aboard a flight.
type joins struct{ f *flight.Flight[int] }

func (j joins) Ask(context.Context) (flight.Ticket[int], error) {
	j.f.Board()
	return flight.Ticket[int]{Flight: j.f}, nil
}
func (joins) Take(int)                 {}
func (joins) Leave(flight.Ticket[int]) {}

// F5, P8: who waits for a claim waits for whoever has it, also where another creator took it
// meanwhile, and by whatever path its store was opened: the circle is told, or one builds as
// well.
func TestCircleThroughAClaimTakenMeanwhile(t *testing.T) {
	r := newRig(t)
	a := r.open("d", mib)
	r.must(os.Symlink(r.path("d"), r.path("link")))
	var slow atomic.Pointer[chan struct{}]
	b, c := r.open("link", mib, func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS {
			return vfs.Watch(vfs.Dir(root), func(op string) error {
				if until := slow.Load(); until != nil && op == "rename" { // by which the lease gets its name
					<-*until
				}
				return nil
			})
		})
	}), r.open("d", mib)
	for _, before := range []bool{false, true} { // the last one waits for the second before it has the claim
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		first, second, third := flight.New[int](ctx, t, "first"), flight.New[int](ctx, t, "second"), flight.New[int](ctx, t, "third")
		_, held, _, err := a.Obtain(first.Context(), backend, "k")
		r.must(err)
		got := make(chan *blobstore.Claim, 1)
		go func() {
			_, claim, _, err := b.Obtain(second.Context(), backend, "k")
			r.must(err)
			got <- claim
		}()
		for ; !first.HasEdges(); time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				t.Fatal("who waits for a claim waits for nobody")
			}
		}
		rode := make(chan error, 1)
		ride := func() {
			_, err := flight.Ride[int](ctxOf{ctx, third.Context()}, joins{second})
			rode <- err
		}
		if before {
			go ride()
			for !second.HasEdges() {
				time.Sleep(time.Millisecond)
			}
		}
		until := make(chan struct{})
		slow.Store(&until)
		held.Release()
		_, taken, _, err := c.Obtain(third.Context(), backend, "k")
		r.must(err)
		slow.Store(nil)
		close(until)
		if !before {
			go ride()
		}
		select {
		case err := <-rode:
			if !errors.Is(err, fault.ErrCycle) {
				t.Errorf("%v: %v, want a circle", before, err)
			}
			taken.Release()
			(<-got).Release()
		case claim := <-got:
			r.want("it builds as well", claim.Token(), 0)
			claim.Release()
			second.Finish(1, nil, nil)
			r.must(<-rode)
			taken.Release()
		}
		for _, f := range []*flight.Flight[int]{first, second, third} {
			f.Finish(0, nil, nil)
			if f.HasEdges() {
				t.Error("an edge is left")
			}
		}
		cancel()
	}
	if n := blobstore.Builders(); n != 0 {
		t.Errorf("%d places are kept", n)
	}
}

// ctxOf has the values of another context.
type ctxOf struct {
	context.Context
	values context.Context
}

func (c ctxOf) Value(key any) any { return c.values.Value(key) }

// F5, P8: a directory is one for the search for circles, however its path is spelt.
func TestCircleThroughPathsOfOneDirectory(t *testing.T) {
	r := newRig(t)
	a := r.open("d", mib)
	r.must(os.Symlink(r.path("d"), r.path("link")))
	r.must(os.Symlink(filepath.Dir(r.path("d")), r.path("parent")))
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	f := flight.New[int](ctx, t, "f")
	_, first, _, err := a.Obtain(f.Context(), backend, "k")
	r.must(err)
	for _, path := range []string{"link", "parent/d", "./d"} {
		_, claim, _, err := r.open(path, mib).Obtain(ctxOf{ctx, f.Context()}, backend, "k")
		r.must(err)
		r.want(path+" builds as well", claim != nil && claim.Token() == 0, true)
		if claim != nil {
			claim.Release()
		}
	}
	first.Release()
}
