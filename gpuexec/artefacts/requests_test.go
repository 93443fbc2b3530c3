package artefacts_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// C1, C5, C13: an artefact is no part of itself. One that was evicted while it was
// leased came back into the table and into no order by such a request: it was counted
// in no entry, never evicted, and not freed by Close.
func TestPartOfItself(t *testing.T) {
	c := open(t, entries(1))
	first, _, err := c.Get(background, c.request(c.Cache, "a", maker{}))
	if err != nil {
		t.Fatal(err)
	}
	c.fill("b") // a is evicted, and leased
	for _, ask := range []func(*artefacts.Request){
		func(r *artefacts.Request) { r.Part = "a" },
		func(r *artefacts.Request) { r.Whole = "a" },
	} {
		r := c.request(c.Cache, "a", maker{})
		ask(&r)
		for name, call := range map[string]func() (*artefacts.Lease, artefacts.Outcome, error){
			"Get":   func() (*artefacts.Lease, artefacts.Outcome, error) { return c.Get(background, r) },
			"Force": func() (*artefacts.Lease, artefacts.Outcome, error) { return c.Force(background, r) },
		} {
			if l, _, err := call(); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s with part %q and whole %q: %v", name, r.Part, r.Whole, err)
				l.End()
			}
		}
	}
	first.End()
	c.close()
	c.eventuallyFreed("a", 1)
	want(t, "bytes after Close", c.Bytes(), int64(0))
	want(t, "there after Close", c.has("a"), 0)
}

// K2: no key is empty, so a hash may look at the first byte. That of the Part which a
// request did not have was hashed in the turn, once the flight was listed: it never
// ended, and whoever asked for its key hung.
func TestHashOfNoPart(t *testing.T) {
	cfg := entries(4)
	cfg.Hash = func(key string) uint64 {
		if key == "" {
			panic("the empty key")
		}
		return uint64(key[0])
	}
	c := open(t, cfg)
	ctx, cancel := context.WithTimeout(background, patience)
	defer cancel()
	want(t, "first", c.getIn(ctx, "k", maker{}), "k by=miss")
	want(t, "second", c.getIn(ctx, "k", maker{}), "k by=hit")
}

// F2: a clock that is set back while a creator runs is not the creator's mistake: what
// it made was freed, and the caller got ErrInvalid.
func TestClockThatIsSetBack(t *testing.T) {
	now := time.Unix(3600, 0)
	cfg := entries(4)
	cfg.Now = func() time.Time { return now }
	c := open(t, cfg)
	l, o, err := c.Get(background, artefacts.Request{Key: "k", Create: func(context.Context) (artefacts.Built, error) {
		now = now.Add(-time.Minute)
		return artefacts.Built{Value: "k", Bytes: 1}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.End()
	want(t, "cost", l.Cost(), time.Duration(0))
	want(t, "duration", o.Duration, time.Duration(0))
}
