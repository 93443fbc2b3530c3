package artefacts_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// B2
func TestBlobRoundTrip(t *testing.T) {
	c, e := open(t, entries(8)), open(t, entries(8))
	c.get("k", maker{value: "v"})
	blob, err := c.Blob(background, "k")
	if err != nil {
		t.Fatal(err)
	}
	from := func(r room, b []byte) string {
		return said(r.FromBlob(background, r.request(r.Cache, "k", maker{}), b))
	}
	want(t, "first", from(e, blob), "v by=persistent_hit")
	want(t, "second", from(e, blob), "v by=hit")
	again, err := e.Blob(background, "k")
	want(t, "error", err, nil)
	want(t, "round trip", string(again), string(blob))
	want(t, "creations", e.count(e.mu.creations, "k"), 0)

	want(t, "resident wins", from(c, []byte("junk")), "v by=hit")
	_, err = c.Blob(background, "nothing")
	want(t, "nothing", word(err), "not_found")
	c.get("n", maker{noBlob: true})
	_, err = c.Blob(background, "n")
	want(t, "no blobs", word(err), "unsupported")
}

// B2, B3: what is wrong with a blob, in this order.
func TestBlobRefused(t *testing.T) {
	c := open(t, entries(8))
	r := c.request(c.Cache, "k", maker{})
	want(t, "nil", said(c.FromBlob(background, artefacts.Request{}, nil)), "error invalid")
	want(t, "empty", said(c.FromBlob(background, r, []byte{})), "error invalid")
	l, o, err := c.FromBlob(background, r, []byte("junk"))
	want(t, "junk", said(l, o, err), "error refused")
	want(t, "reason", o.Reason, fault.DriverRefused)
	var typed *fault.Error
	if !errors.Is(err, errDriver) || !errors.As(err, &typed) {
		t.Errorf("junk: %v", err)
	}
	want(t, "reasons", c.Stats().Reasons[fault.DriverRefused], 1)
	want(t, "failed", c.Stats().Events[artefacts.Failed], 1)
	want(t, "len", c.Len(), 0)
	r.Load = func(context.Context, []byte) (artefacts.Built, error) {
		return artefacts.Built{}, &fault.Error{Op: "driver", Reason: fault.Checksum, Err: fault.ErrRefused}
	}
	_, o, err = c.FromBlob(background, r, []byte("junk"))
	want(t, "typed", word(err), "refused")
	want(t, "typed", o.Reason, fault.Checksum)
	r.Load = func(context.Context, []byte) (artefacts.Built, error) { panic("in the driver") }
	want(t, "panic", said(c.FromBlob(background, r, []byte("junk"))), "error panic in the driver")
	r.Load = nil
	want(t, "no blobs", said(c.FromBlob(background, r, []byte("b"))), "error unsupported")
}

// K6: a blob of a key that cannot be hashed is loaded for its caller alone.
func TestBlobOfARefusedKey(t *testing.T) {
	c := open(t, entries(8))
	c.get("k", maker{value: "v0"})
	for _, key := range []string{"k", "u", "u"} {
		r := c.request(c.Cache, key, maker{})
		r.Unhashable = "include"
		l, o, err := c.FromBlob(background, r, []byte("blob:v"))
		want(t, "field", o.Field, "include")
		want(t, "reason", o.Reason, fault.KeyRefused)
		want(t, "from blob", said(l, o, err), "v by=persistent_hit")
		l, o, err = c.FromBlob(background, r, []byte("junk"))
		want(t, "junk", said(l, o, err), "error refused")
		want(t, "junk", o.Reason, fault.DriverRefused)
		want(t, "junk", o.Field, "")
	}
	c.eventuallyFreed("v", 3)
	want(t, "has", c.has("u"), 0)
	want(t, "len", c.Len(), 1)
	want(t, "key_refused", c.Stats().Reasons[fault.KeyRefused], 3)
	want(t, "get", c.get("k", maker{}), "v0 by=hit")
}

// B3, C8: who joined the flight of another's bad blob is not refused with it, and
// ends in one event.
func TestAnothersBadBlob(t *testing.T) {
	bubble(t, entries(4), func(t *testing.T, c room) {
		g := gate()
		r := c.request(c.Cache, "k", maker{value: "v"})
		load := r.Load
		r.Load = func(ctx context.Context, blob []byte) (artefacts.Built, error) {
			<-g
			return load(ctx, blob)
		}
		calls := map[string]func() (*artefacts.Lease, artefacts.Outcome, error){
			"bad": func() (*artefacts.Lease, artefacts.Outcome, error) { return c.FromBlob(background, r, []byte("junk")) },
			"good": func() (*artefacts.Lease, artefacts.Outcome, error) {
				return c.FromBlob(background, r, []byte("blob:v"))
			},
			"get":  func() (*artefacts.Lease, artefacts.Outcome, error) { return c.Get(background, r) },
			"peek": func() (*artefacts.Lease, artefacts.Outcome, error) { return c.Peek(background, "k") },
		}
		begin := func(name string) <-chan string {
			out := make(chan string, 1)
			go func() { out <- said(calls[name]()) }()
			synctest.Wait() // it has joined, or stands at the gate
			return out
		}
		round := func(others ...string) (ends map[string]int) {
			ends = map[string]int{}
			bad := begin("bad")
			var waiting []<-chan string
			for _, name := range others {
				waiting = append(waiting, begin(name))
			}
			close(g)
			want(t, "bad", <-bad, "error refused")
			for _, out := range waiting {
				ends[<-out]++
			}
			return ends
		}
		want(t, "peek", round("peek")["miss reason=absent"], 1)
		want(t, "events", c.events("k"), "failed")
		g = gate()
		want(t, "get", round("get")["v by=miss"], 1)
		c.setEntries(0)
		c.setEntries(4)
		g = gate()
		want(t, "good", round("good")["v by=persistent_hit"], 1)
		all := strings.Fields(c.events("k")) // each is told by a caller of its own
		slices.Sort(all)
		want(t, "events", strings.Join(all, " "), "failed failed failed miss persistent_hit")
		c.setEntries(0)
		c.setEntries(4)
		g = gate()
		ends := round("get", "get", "good", "good")
		made := ends["v by=miss"] + ends["v by=persistent_hit"]
		want(t, "made", made, 1)
		want(t, "others", ends["v by=hit"]+ends["v by=joined"], 3)
		events := c.Stats().Events
		want(t, "joined and hits", events[artefacts.Joined]+events[artefacts.Hit], 3)
		want(t, "failed", events[artefacts.Failed], 4)
	})
}

// keeps is a store that gives out the very bytes that it keeps.
type keeps struct {
	*shelf
	blob []byte
}

func (k keeps) Find(ctx context.Context, sub artefacts.Subject) artefacts.Found {
	found := k.shelf.Find(ctx, sub)
	found.Blob, found.Reason = k.blob, ""
	return found
}

// B2, P6: a Load that writes into its blob spoils neither what the store keeps nor what a caller
// gave, who may change it when it has left.
func TestLoadHasABlobOfItsOwn(t *testing.T) {
	entered, goOn, got := make(chan struct{}, 1), make(chan struct{}), make(chan string, 1)
	r := artefacts.Request{Key: "k",
		Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, errors.New("want a load") },
		Load: func(_ context.Context, blob []byte) (artefacts.Built, error) {
			entered <- struct{}{}
			<-goOn
			got <- string(blob)
			clear(blob)
			return artefacts.Built{}, nil
		}}
	for _, unhashable := range []string{"", "an input"} {
		c := open(t, artefacts.Config{})
		given := []byte("blob")
		r.Unhashable = unhashable
		ctx, leave := context.WithCancel(background)
		left := make(chan error, 1)
		go func() {
			_, _, err := c.FromBlob(ctx, r, given)
			left <- err
		}()
		<-entered
		leave()
		want(t, "who has left", errors.Is(<-left, context.Canceled), true)
		copy(given, "junk")
		goOn <- struct{}{}
		want(t, "loaded", <-got, "blob")
		want(t, "given", string(given), "junk")
	}
	r.Unhashable = ""
	close(goOn)
	store := keeps{newShelf(t), []byte("blob")}
	c := open(t, artefacts.Config{Store: store})
	l, _, err := c.Get(background, r)
	want(t, "error", err, nil)
	l.End()
	<-got
	want(t, "kept", string(store.blob), "blob")
}
