package artefacts_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// C8, C1, C11: two artefacts, one kernel.
func TestKernelShared(t *testing.T) {
	c := open(t, entries(8))
	want(t, "p1", c.get("p1", maker{kernel: "x"}), "p1 by=miss")
	want(t, "p2", c.get("p2", maker{kernel: "x"}), "p2 by=kernel_hit")
	want(t, "p2", c.get("p2", maker{}), "p2 by=hit")
	want(t, "kernels", c.Kernels(), 1)
	c.setEntries(0)
	want(t, "kernels", c.Kernels(), 0)
	c.eventuallyFreed("kernel:x", 1)
	c.setEntries(8)
	want(t, "p3", c.get("p3", maker{kernel: "x"}), "p3 by=miss")
	want(t, "compiles", c.count(c.mu.creations, "kernel:x"), 2)
}

// C11: it lives while an artefact made from it is leased, here out of the layer.
func TestKernelOfALeasedArtefact(t *testing.T) {
	c := open(t, entries(8))
	l, _, err := c.Get(background, c.request(c.Cache, "p", maker{kernel: "x"}))
	if err != nil {
		t.Fatal(err)
	}
	c.setEntries(0)
	want(t, "kernels", c.Kernels(), 0)
	want(t, "freed", c.count(c.mu.freed, "kernel:x"), 0)
	l.End()
	c.eventuallyFreed("kernel:x", 1) // the layer's own hold ends with its turn
}

// C11: unused kernels stay while they fit into as many entries, used ones always.
func TestKernelLayerCapacity(t *testing.T) {
	c := open(t, entries(2))
	for i := range 5 {
		n := strconv.Itoa(i)
		c.get("p"+n, maker{kernel: "x" + n})
	}
	eventually(t, "kernels", c.Kernels, 2)
	c.eventuallyFreed("kernel:x0", 1)
	c.eventuallyFreed("kernel:x2", 1)
	want(t, "p4", c.has("p4"), 1)
	c.fill("a", "b") // p3 and p4 go; their kernels still fit
	eventually(t, "kernels", c.Kernels, 2)
	q, o, err := c.Get(background, c.request(c.Cache, "q", maker{kernel: "x4"}))
	if err != nil || o.Event != artefacts.KernelHit {
		t.Fatalf("q by=%s, %v", o.Event, err)
	}
	for i := 5; i < 9; i++ { // others come and go; x4 is in use again
		n := strconv.Itoa(i)
		c.get("p"+n, maker{kernel: "x" + n})
	}
	eventually(t, "kernels", c.Kernels, 3) // of q and of the two newest
	want(t, "r", c.get("r", maker{kernel: "x4"}), "r by=kernel_hit")
	q.End()

	// Both kernels in use by leased artefacts that were evicted: a third joins them.
	c2 := open(t, entries(2))
	var leases []*artefacts.Lease
	for _, k := range []string{"1", "2"} {
		l, _, err := c2.Get(background, c2.request(c2.Cache, "p"+k, maker{kernel: "x" + k}))
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	want(t, "p3", c2.get("p3", maker{kernel: "x3"}), "p3 by=miss")
	want(t, "kernels", c2.Kernels(), 3)
	want(t, "p4", c2.get("p4", maker{kernel: "x1"}), "p4 by=kernel_hit")
	for _, l := range leases {
		l.End()
	}
	eventually(t, "kernels", c2.Kernels, 2)
	c2.eventuallyFreed("kernel:x2", 1)
	want(t, "x1 is in use", c2.count(c2.mu.freed, "kernel:x1"), 0)
}

// C11: what has been evicted counts among the users of a kernel no longer, though
// it keeps it until it has been freed itself.
func TestKernelsOfWhatIsBeingFreed(t *testing.T) {
	c := open(t, entries(3))
	freeing := make(chan struct{})
	for i := range 3 {
		n := strconv.Itoa(i)
		c.get("p"+n, maker{kernel: "x" + n, free: func() { <-freeing }})
	}
	c.setEntries(1)
	want(t, "kernels", c.Kernels(), 1)
	want(t, "q", c.get("q", maker{kernel: "x2"}), "q by=kernel_hit")
	want(t, "has p2", c.has("p2"), 0)
	want(t, "freed before their artefacts", c.count(c.mu.freed, "kernel:x0", "kernel:x1"), 0)
	close(freeing)
	c.eventuallyFreed("kernel:x0", 1)
	c.eventuallyFreed("kernel:x1", 1)
	want(t, "r", c.get("r", maker{kernel: "x2"}), "r by=kernel_hit")
	want(t, "x2 is in use", c.count(c.mu.freed, "kernel:x2"), 0)
}

// C11: an artefact that needed a new kernel beside an old one is a miss.
func TestKernelHitNeedsAll(t *testing.T) {
	c := open(t, entries(8))
	c.get("p1", maker{kernel: "x"})
	two := func(keys ...string) string {
		r := artefacts.Request{Key: "p" + keys[0] + keys[1], Create: func(ctx context.Context) (artefacts.Built, error) {
			for _, k := range keys {
				if _, err := c.Kernel(ctx, artefacts.Request{Key: k, Create: func(context.Context) (artefacts.Built, error) {
					return artefacts.Built{Value: k}, nil
				}}); err != nil {
					return artefacts.Built{}, err
				}
			}
			return artefacts.Built{Value: "two"}, nil
		}}
		return said(c.Get(background, r))
	}
	want(t, "old and new", two("x", "y"), "two by=miss")
	want(t, "old and old", two("y", "x"), "two by=kernel_hit")
}

// C11, F2: a creator that fails after it had a kernel holds it no longer.
func TestKernelOfAFailedArtefact(t *testing.T) {
	c := open(t, entries(1))
	r := artefacts.Request{Key: "p", Create: func(ctx context.Context) (artefacts.Built, error) {
		_, err := c.Kernel(ctx, artefacts.Request{Key: "x", Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Free: func() { c.grow(c.mu.freed, "x") }}, nil
		}})
		return artefacts.Built{}, errors.Join(errors.New("no"), err)
	}}
	want(t, "get", said(c.Get(background, r)), "error failed no")
	want(t, "kernels", c.Kernels(), 1) // it still fits
	c.get("q", maker{kernel: "y"})
	c.eventuallyFreed("x", 1)
	eventually(t, "kernels", c.Kernels, 1)
}

// F1, F5: kernels are compiled once; a circle across both layers is found.
func TestKernelFlights(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		g := gate()
		r := func(key string) artefacts.Request {
			return artefacts.Request{Key: key, Create: func(ctx context.Context) (artefacts.Built, error) {
				v, err := c.Kernel(ctx, artefacts.Request{Key: "x", Create: func(context.Context) (artefacts.Built, error) {
					c.grow(c.mu.creations, "x")
					<-g
					return artefacts.Built{Value: "kernel"}, nil
				}})
				return artefacts.Built{Value: v}, err
			}}
		}
		out := make(chan string, 2) // one answer each
		for _, k := range []string{"p", "q"} {
			go func() { out <- said(c.Get(background, r(k))) }()
		}
		want(t, "waiting", len(out), 0)
		close(g)
		got := all(out, 2)
		want(t, "miss", got["kernel by=miss"], 1)
		want(t, "kernel_hit", got["kernel by=kernel_hit"], 1)
		want(t, "compiles", c.count(c.mu.creations, "x"), 1)

		var a artefacts.Request
		a = artefacts.Request{Key: "a", Create: func(ctx context.Context) (artefacts.Built, error) {
			_, err := c.Kernel(ctx, artefacts.Request{Key: "k", Create: func(ctx context.Context) (artefacts.Built, error) {
				_, _, err := c.Get(ctx, a)
				return artefacts.Built{}, err
			}})
			return artefacts.Built{}, err
		}}
		want(t, "circle", said(c.Get(background, a)), "error cycle")
		want(t, "kernels", c.Kernels(), 1)
	})
}

// C1, F7: a kernel that was being compiled when the layer was emptied is used and
// not kept, though it would fit again by now.
func TestKernelOfAClearedFlight(t *testing.T) {
	bubble(t, entries(8), func(t *testing.T, c room) {
		g := gate()
		r := artefacts.Request{Key: "p", Create: func(ctx context.Context) (artefacts.Built, error) {
			v, err := c.Kernel(ctx, artefacts.Request{Key: "x", Create: func(context.Context) (artefacts.Built, error) {
				<-g
				return artefacts.Built{Value: "kernel"}, nil
			}})
			return artefacts.Built{Value: v}, err
		}}
		out := make(chan string, 1)
		go func() { out <- said(c.Get(background, r)) }()
		synctest.Wait()
		c.setEntries(0)
		c.setEntries(8)
		close(g)
		want(t, "get", <-out, "kernel by=miss")
		want(t, "kernels", c.Kernels(), 0)
	})
}

func TestKernelOutsideOfACreator(t *testing.T) {
	c := open(t, entries(8))
	other := open(t, artefacts.Config{Entries: limit.Of(1)})
	kernel := artefacts.Request{Key: "x", Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, nil }}
	_, err := c.Kernel(background, kernel)
	want(t, "outside", word(err), "invalid")
	var kept context.Context
	_, _, err = other.Get(background, artefacts.Request{Key: "k", Create: func(ctx context.Context) (artefacts.Built, error) {
		kept = ctx
		_, err := c.Kernel(ctx, kernel)
		return artefacts.Built{}, err
	}})
	want(t, "another cache's", word(err), "invalid")
	_, err = other.Kernel(context.WithoutCancel(kept), kernel)
	want(t, "too late", word(err), "invalid")
}
