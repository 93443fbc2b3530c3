package sessioncache_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
)

// lateInto has a creator's value of some bytes come late, beside early ones, into the group of n,
// which is not worth those that are filled meanwhile and announced.
func (b *box) lateInto(n int, early, late int64, others func()) {
	b.t.Helper()
	goOn := make(chan struct{})
	h := b.hold(n)
	_, _, err := h.Get(&leaves{Context: bg}, "late", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		<-goOn
		return sessioncache.Value{Any: "late", Bytes: late}, nil
	})
	if !errors.Is(err, context.Canceled) {
		b.t.Fatal(err)
	}
	h.Close()
	want(b.t, "groups, as nobody waits for it", b.Groups(), 0)
	others()
	before := b.Groups()
	h = b.hold(n)
	_, _, err = h.Get(bg, "early", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		return sessioncache.Value{Any: "early", Bytes: early}, nil
	})
	if err != nil {
		b.t.Fatal(err)
	}
	h.Close()
	want(b.t, "groups beside it", b.Groups(), before)
	close(goOn)
	eventually(b.t, func() bool { return b.Stats().Running == 0 }, func() any { return b.Stats().Running }, "running", 0)
	sessioncache.InTurn(b.Session, func() {}) // after the end of the turn that keeps the value, or not
}

// F4, G2: a group that comes back with what was made late needs room for all that it holds.
// Where it can have none, nothing goes for it.
func TestLateValueOfAGroupThatHolds(t *testing.T) {
	for late, has := range map[int64][]bool{5: {true, false, true}, 30: {true, false, false}, 50: {false, true, true}} {
		s := open(t, sessioncache.Config{Groups: sessioncache.LimitOf(2), Bytes: sessioncache.LimitOf(100), Policy: "duel", Keep: "worth", Linger: time.Hour})
		s.lateInto(1, 60, late, func() {
			if err := errors.Join(s.sized(2, "n", "2", 30), s.sized(3, "n", "3", 30)); err != nil {
				t.Fatal(err)
			}
			s.announce(3, 2)
		})
		for i, there := range has {
			if s.Has(shape(t, i+1)) != there {
				t.Errorf("late %d: the group of %d is there: %v, want %v", late, i+1, !there, there)
			}
		}
		if n := s.Bytes(); n > 100 {
			t.Errorf("late %d: %d bytes, want at most 100", late, n)
		}
	}
}
