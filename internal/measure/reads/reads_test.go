package reads

import (
	"context"
	"errors"
	"testing"
)

var ctx = context.Background()

func load(t *testing.T) (*Loaded, *Peer) {
	t.Helper()
	r, err := New(4 * Names)
	if err != nil {
		t.Fatal(err)
	}
	l, err := Load(ctx, r, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Session.Close(ctx) })
	return l, NewPeer(r)
}

// Every way to ask finds every request, a slice goes on where the last one ended,
// and one that misses something says so.
func TestLoaded(t *testing.T) {
	l, peer := load(t)
	requests := len(l.Requests.Places)
	n := requests + 1 // beyond the end, and on from the beginning
	bad := errors.New("missed")
	missed := func(int) error { return bad }
	for name, find := range map[string]Finder{"held": l.Held, "id": l.ByID, "name": l.ByName, "key": l.ByKey, "dims": l.ByDims, "peer": peer.Find} {
		if _, err := l.Requests.Side(find, 1, missed)(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	asked := 0
	lastMissed := func(from, to int) int {
		if asked += to - from; asked == n {
			return to - from - 1
		}
		return to - from
	}
	if _, err := l.Requests.Side(lastMissed, 0, missed)(n); !errors.Is(err, bad) || asked != n {
		t.Errorf("%d of %d asked, the last of them missed: %v", asked, n, err)
	}
}

// What is evicted is found again after a restore.
func TestRestore(t *testing.T) {
	l, _ := load(t)
	if err := l.Session.ResetAll(ctx); err != nil {
		t.Fatal(err)
	}
	requests := len(l.Requests.Places)
	if found := l.Held(0, requests); found != 0 {
		t.Errorf("%d of %d held after a reset", found, requests)
	}
	if err := l.Restore(ctx); err != nil {
		t.Fatal(err)
	}
	if found := l.Held(0, requests); found != requests {
		t.Errorf("%d of %d held after a restore", found, requests)
	}
}

// Both caches make each value once and give it to every caller.
func TestMakers(t *testing.T) {
	values := Absent(1)
	for name, open := range map[string]Maker{"session": InSession, "promises": InPromises} {
		made := 0
		ask, end, err := open(ctx, values, func() { made++ })
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			for i := range values {
				if v, err := ask(i); v != &values[i] || err != nil {
					t.Fatalf("%s: %v, %v", name, v, err)
				}
			}
		}
		if made != len(values) {
			t.Errorf("%s: made %d of %d", name, made, len(values))
		}
		if err := end(); err != nil {
			t.Error(err)
		}
	}
}
