package flight_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/internal/flight"
)

// trip is what a room might keep of a flight.
type trip struct {
	flight.Seats
	key string
}

type desk = flight.Desk[string, *trip]

// naive is a simple desk's idea of one flight: every caller by itself, with what it
// asked for.
type naive struct {
	trip      *trip
	key       string // "" = lone
	callers   []time.Duration
	linger    time.Duration
	alone     time.Time // since when nobody is aboard
	cancelled bool
	void      bool
}

// The desk equals a simple one under any sequence of calls (SPEC F1, F4, F7).
func TestDeskModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d desk
		var flying, ended []*naive
		now := time.Unix(0, 0)
		pick := func(of []*naive) *naive { return rapid.SampledFrom(of).Draw(t, "flight") }
		listed := func(key string) *naive {
			for _, n := range flying {
				if n.key == key && key != "" {
					return n
				}
			}
			return nil
		}
		linger := rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute})
		keys := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				key, wait := keys.Draw(t, "key"), linger.Draw(t, "linger")
				got, late, found := d.Join(key, wait)
				n := listed(key)
				if found != (n != nil) {
					t.Fatalf("join %s: %v", key, found)
				}
				if n == nil {
					n = &naive{trip: &trip{key: key}, key: key}
					d.Begin(key, n.trip, wait)
					flying = append(flying, n)
				} else if got != n.trip || late != n.cancelled {
					t.Fatalf("join %s: late %v, want %v", key, late, n.cancelled)
				}
				n.callers = append(n.callers, wait)
				n.linger, n.alone = max(n.linger, wait), time.Time{}
			},
			"lone": func(t *rapid.T) {
				wait := linger.Draw(t, "linger")
				n := &naive{trip: &trip{}, callers: []time.Duration{wait}, linger: wait}
				d.BeginLone(n.trip, wait)
				flying = append(flying, n)
			},
			"leave": func(t *rapid.T) {
				all := slices.DeleteFunc(slices.Concat(flying, ended), func(n *naive) bool { return len(n.callers) == 0 })
				if len(all) == 0 {
					t.Skip("nobody is aboard")
				}
				n := pick(all)
				n.callers = n.callers[1:]
				alone, wait := d.Leave(n.trip, now)
				last := len(n.callers) == 0 && !n.cancelled && slices.Contains(flying, n)
				if alone != last || last && wait != n.linger {
					t.Fatalf("leave: alone %v for %v, want %v for %v", alone, wait, last, n.linger)
				}
				if last && n.linger == 0 {
					n.cancelled = true
				} else if last {
					n.alone = now
				}
			},
			"expire": func(t *rapid.T) {
				all := slices.Concat(flying, ended)
				if len(all) == 0 {
					t.Skip("no flight")
				}
				n := pick(all)
				due := slices.Contains(flying, n) && !n.cancelled && len(n.callers) == 0 && !n.alone.IsZero() && now.Sub(n.alone) >= n.linger
				if got := d.Expire(n.trip, now); got != due {
					t.Fatalf("expire: %v, want %v", got, due)
				}
				n.cancelled = n.cancelled || due
			},
			"later": func(t *rapid.T) {
				now = now.Add(rapid.SampledFrom([]time.Duration{1, time.Second, time.Hour}).Draw(t, "time"))
			},
			"void": func(t *rapid.T) {
				if len(flying) == 0 {
					t.Skip("no flight")
				}
				n := pick(flying)
				n.void = true
				d.Void(n.trip)
			},
			"void all": func(t *rapid.T) {
				for _, n := range flying {
					n.void = true
				}
				d.VoidAll()
			},
			"end": func(t *rapid.T) {
				all := slices.Concat(flying, ended)
				if len(all) == 0 {
					t.Skip("no flight")
				}
				n := pick(all)
				at := slices.Index(flying, n)
				first, keep := d.End(n.trip.key, n.trip)
				if first != (at >= 0) || keep != (at >= 0 && !n.void) {
					t.Fatalf("end: first %v, keep %v", first, keep)
				}
				if at >= 0 {
					flying, ended = slices.Delete(flying, at, at+1), append(ended, n)
				}
			},
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "close") > 0 {
					t.Skip("not now")
				}
				for f := range d.All() { // as a room does that closes
					if first, _ := d.End(f.key, f); !first {
						t.Fatalf("a flight that has ended was among all")
					}
				}
				flying, ended = nil, append(ended, flying...)
			},
			"": func(t *rapid.T) {
				all := slices.Collect(d.All())
				if d.Len() != len(flying) || len(all) != len(flying) {
					t.Fatalf("%d flights, %d listed, want %d", d.Len(), len(all), len(flying))
				}
				for _, n := range flying {
					if !slices.Contains(all, n.trip) || n.trip.Over() || d.May(n.trip) == n.void {
						t.Fatalf("flight %q: over %v, may stay %v", n.key, n.trip.Over(), d.May(n.trip))
					}
					if n.trip.Callers() != len(n.callers) {
						t.Fatalf("flight %q: %d callers", n.key, n.trip.Callers())
					}
				}
				for _, key := range []string{"a", "b", "c"} {
					f, found := d.Find(key)
					if n := listed(key); found != (n != nil) || found && f != n.trip {
						t.Fatalf("find %s: %v", key, found)
					}
				}
			},
		})
	})
}

// F4: a caller that comes within the linger time stops it, and it begins anew when
// that one leaves; the longest wish counts.
func TestLinger(t *testing.T) {
	var d desk
	start := time.Unix(100, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	f := &trip{}
	d.Begin("k", f, 2*time.Second)
	if alone, wait := d.Leave(f, at(0)); !alone || wait != 2*time.Second {
		t.Fatalf("alone %v for %v", alone, wait)
	}
	if _, late, ok := d.Join("k", 5*time.Second); !ok || late {
		t.Fatal("not joined within the linger time")
	}
	if d.Expire(f, at(2)) {
		t.Error("expired with a caller aboard")
	}
	if alone, wait := d.Leave(f, at(3)); !alone || wait != 5*time.Second {
		t.Fatalf("alone %v for %v", alone, wait)
	}
	if d.Expire(f, at(7)) || !d.Expire(f, at(8)) || d.Expire(f, at(9)) {
		t.Error("want the end after 5 s, once")
	}
	if _, late, ok := d.Join("k", 0); !ok || !late {
		t.Error("a cancelled flight is still the one of its key")
	}
	if alone, _ := d.Leave(f, at(10)); alone {
		t.Error("told twice that the creator is to be cancelled")
	}
	if first, keep := d.End("k", f); !first || !keep {
		t.Error("a late success is kept")
	}
}

func TestDeskRefuses(t *testing.T) {
	for name, wrong := range map[string]func(d *desk, f *trip){
		"two flights for one key": func(d *desk, f *trip) { d.Begin("k", &trip{}, 0) },
		"left twice":              func(d *desk, f *trip) { d.Leave(f, time.Time{}); d.Leave(f, time.Time{}) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			var d desk
			f := &trip{}
			d.Begin("k", f, 0)
			wrong(&d, f)
		})
	}
}

func BenchmarkDesk(b *testing.B) {
	b.ReportAllocs()
	var d desk
	f := &trip{}
	for b.Loop() {
		d.Begin("k", f, 0)
		d.Join("k", 0)
		d.Leave(f, time.Time{})
		d.End("k", f)
	}
}
