package pressure_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/internal/pressure"
)

// shelf is a room: what it holds, by tier and cost.
type shelf struct {
	watch *pressure.Watch
	mu    struct {
		sync.Mutex
		items []pressure.Item
		gone  []pressure.Item
	}
}

func (s *shelf) put(items ...pressure.Item) {
	s.mu.Lock()
	s.mu.items = append(s.mu.items, items...)
	s.mu.Unlock()
	for _, it := range items {
		s.watch.Add(it.Bytes)
	}
}

func (s *shelf) Offer(context.Context) []pressure.Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]pressure.Item(nil), s.mu.items...)
}

func (s *shelf) Shrink(_ context.Context, bytes int64, tier pressure.Tier) (freed pressure.Freed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for freed.Bytes < bytes {
		best := -1
		for i, it := range s.mu.items {
			if it.Tier == tier && (best < 0 || pressure.Cheaper(it, s.mu.items[best]) < 0) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		it := s.mu.items[best]
		s.mu.items = append(s.mu.items[:best:best], s.mu.items[best+1:]...)
		s.mu.gone = append(s.mu.gone, it)
		freed.Bytes += it.Bytes
		s.watch.Add(-it.Bytes)
	}
	return freed
}

func (s *shelf) left() (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range s.mu.items {
		bytes += it.Bytes
	}
	return bytes
}

// house is blobs, a session, the artefacts and the constants.
func house(t *testing.T, limit int64, log *bytes.Buffer) (w *pressure.Watch, rooms [4]*shelf) {
	var logger *slog.Logger
	if log != nil {
		logger = slog.New(slog.NewTextHandler(log, nil))
	}
	w = pressure.New(pressure.Config{Limit: limit, Go: func(fn func()) { go fn() }, Logger: logger})
	for i := range rooms {
		rooms[i] = &shelf{watch: w}
	}
	for _, i := range []int{3, 1, 2, 0} { // in any order
		rank := [4]pressure.Rank{pressure.Blobs, pressure.Sessions, pressure.Artefacts, pressure.Constants}[i]
		w.Join(pressure.Room{Rank: rank, Offer: rooms[i].Offer, Shrink: rooms[i].Shrink})
	}
	t.Cleanup(func() {
		if err := w.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w, rooms
}

func settle(t *testing.T, w *pressure.Watch) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := w.Settle(ctx); err != nil {
		t.Fatal(err)
	}
}

// The cheapest a byte goes first over all rooms; floors after that; constants
// last; no more than has to; one line in the log.
func TestCheapestFirst(t *testing.T) {
	var log bytes.Buffer
	w, r := house(t, 1000, &log)
	r[0].put(pressure.Item{Bytes: 100, Seconds: 1}, pressure.Item{Bytes: 100, Seconds: 50})
	r[1].put(pressure.Item{Bytes: 100, Seconds: 0.1, Tier: pressure.Floors})
	r[2].put(pressure.Item{Bytes: 200, Seconds: 3}, pressure.Item{Bytes: 200, Seconds: 80})
	r[3].put(pressure.Item{Bytes: 300, Seconds: 0, Tier: pressure.Last})
	if s := w.Stats(); s.Bytes != 1000 || s.Shrinks != 0 || log.Len() != 0 {
		t.Fatalf("at the limit: %+v %q", s, log.String())
	}
	check := func(what string, bytes ...int64) {
		t.Helper()
		settle(t, w)
		for i, n := range bytes {
			if got := r[i].left(); got != n {
				t.Errorf("%s: room %d has %d, want %d", what, i, got, n)
			}
		}
	}
	w.Add(50) // used by somebody
	check("50 above", 100, 100, 400, 300)
	w.Add(200)
	check("150 above", 100, 100, 200, 300)
	w.Add(350)
	check("300 above", 0, 100, 0, 300)
	w.Add(300)
	check("200 above", 0, 0, 0, 0)
	if s := w.Stats(); s.Shrinks != 4 || s.Freed != 1000 || s.Bytes != 900 || s.Limit != 1000 {
		t.Errorf("%+v", s)
	}
	if n := strings.Count(log.String(), "\n"); n != 4 || !strings.Contains(log.String(), "others=100 artefacts=0 constants=0 before=1050 now=950 limit=1000") {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// Where everything is in use it does not try again at every byte, but does when
// the sum has grown by a 64th.
func TestPatience(t *testing.T) {
	tries := 0 // between two calls of settle
	w := pressure.New(pressure.Config{Limit: 6400, Go: func(fn func()) { go fn() }})
	w.Join(pressure.Room{Offer: func(context.Context) []pressure.Item { tries++; return nil }})
	for range 6400 {
		w.Add(1)
		settle(t, w)
	}
	if tries != 0 {
		t.Fatalf("%d tries within the limit", tries)
	}
	for range 1000 {
		w.Add(1)
		settle(t, w)
	}
	if tries < 5 || tries > 10 {
		t.Errorf("%d tries over ten 64ths of the limit", tries)
	}
	w.Add(-2000)
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	n := tries
	w.Add(1 << 20)
	if tries != n {
		t.Error("a closed watch shrinks")
	}
}

// A limit that cannot be met is said once, with the bytes it lacks, and again only
// after it was met: by a shrink or by what others freed.
func TestWarnsOnceWhereItCannotBeMet(t *testing.T) {
	var log bytes.Buffer
	w, r := house(t, 6400, &log)
	grow := func(steps, bytes int64, warnings int, text string) {
		t.Helper()
		for range steps {
			w.Add(bytes)
			settle(t, w)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != warnings || !strings.Contains(log.String(), text) {
			t.Errorf("%d warnings, want %d with %q:\n%s", n, warnings, text, log.String())
		}
	}
	grow(1, 6400, 0, "")
	grow(1, 70, 1, "over=70 now=6470 limit=6400")
	grow(5, 200, 1, "over=70") // it tries again, and says no more
	grow(1, -2000, 1, "over=70")
	grow(1, 930, 1, "over=70") // at the limit
	grow(1, 5, 2, "over=5 ")   // and above, where it had been without a word
	r[0].put(pressure.Item{Bytes: 300, Seconds: 1})
	settle(t, w)
	if got := r[0].left(); got != 0 {
		t.Fatalf("%d bytes are left that could go", got)
	}
	grow(5, 200, 2, "over=5 ")
	r[1].mu.Lock()
	r[1].mu.items = []pressure.Item{{Bytes: 1100, Seconds: 1}} // of what was in use
	r[1].mu.Unlock()
	grow(1, 200, 2, "artefacts=0") // now that can go
	if now := w.Stats().Bytes; now != 6505 {
		t.Fatalf("%d bytes after all that could go went", now)
	}
	grow(1, -106, 2, "over=5 ")
	grow(1, 2, 3, "over=1 ")
}

// A room that has left is asked for nothing; what sessions lease is asked of the
// artefacts, whatever the order of joining.
func TestLeave(t *testing.T) {
	w := pressure.New(pressure.Config{Limit: 100, Go: func(fn func()) { go fn() }})
	gone := &shelf{watch: w}
	leave := w.Join(pressure.Room{Rank: pressure.Blobs, Offer: gone.Offer, Shrink: gone.Shrink})
	var asked int64
	w.Join(pressure.Room{Rank: pressure.Artefacts, Offer: func(context.Context) []pressure.Item { return nil },
		Shrink: func(_ context.Context, n int64, _ pressure.Tier) pressure.Freed {
			asked += n
			w.Add(-n)
			return pressure.Freed{Bytes: n}
		}})
	w.Join(pressure.Room{Rank: pressure.Sessions, Offer: func(context.Context) []pressure.Item {
		return []pressure.Item{{Bytes: 60, Seconds: 1}}
	}, Shrink: func(context.Context, int64, pressure.Tier) pressure.Freed {
		return pressure.Freed{Bytes: 60, Leased: 60}
	}})
	leave()
	leave()
	gone.put(pressure.Item{Bytes: 150})
	settle(t, w)
	if n := gone.left(); n != 150 || asked != 60 || len(w.Rooms()) != 2 {
		t.Errorf("%d bytes left where the room had left, %d asked of the artefacts, %d rooms", n, asked, len(w.Rooms()))
	}
	if err := w.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestNilWatch(t *testing.T) {
	var w *pressure.Watch
	w.Add(5)
	w.Join(pressure.Room{})()
	if w.Stats() != (pressure.Stats{}) || w.Close(context.Background()) != nil || w.Settle(context.Background()) != nil {
		t.Error("a nil watch counts")
	}
	if n := testing.AllocsPerRun(100, func() { w.Add(1); w.Add(-1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Many who grow and free at once: in the end it is within the limit.
func TestWatchHammer(t *testing.T) {
	const limit = 1000
	w, r := house(t, limit, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for k := range 300 {
				tier := pressure.Tier(0)
				if i%4 == 3 {
					tier = pressure.Last
				}
				r[i%4].put(pressure.Item{Bytes: int64(k%37 + 1), Seconds: float64(k % 5), Tier: tier})
			}
		})
	}
	wg.Wait()
	settle(t, w)
	var sum int64
	for _, s := range r {
		sum += s.left()
	}
	if got := w.Stats().Bytes; got != sum || got > limit {
		t.Errorf("%d counted, %d held, limit %d", got, sum, limit)
	}
}

// hostile is a log handler that ends its goroutine, or panics.
type hostile struct {
	slog.Handler
	harm func()
}

func (h hostile) Handle(context.Context, slog.Record) error { h.harm(); return nil }

// F3: a logger that panics or ends its goroutine does not end the watch: the shrink
// that runs ends, and the next one begins.
func TestHostileLogger(t *testing.T) {
	for _, harm := range []func(){runtime.Goexit, func() { panic("handler") }} {
		w := pressure.New(pressure.Config{Limit: 100, Go: func(fn func()) { go fn() },
			Logger: slog.New(hostile{slog.NewTextHandler(io.Discard, nil), harm})})
		s := &shelf{watch: w}
		w.Join(pressure.Room{Rank: pressure.Sessions, Offer: s.Offer, Shrink: s.Shrink})
		for range 3 {
			w.Add(150) // of which nothing can go
			settle(t, w)
			w.Add(-150)
		}
		s.put(pressure.Item{Bytes: 150})
		settle(t, w)
		if n := w.Stats().Shrinks; n == 0 {
			t.Error("nothing was shrunk")
		}
		if err := w.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// Q5: a handler of the log that blocks keeps no shrink from beginning. Close waits for it.
func TestLogThatBlocks(t *testing.T) {
	goOn := make(chan struct{})
	w := pressure.New(pressure.Config{Limit: 100, Go: func(fn func()) { go fn() },
		Logger: slog.New(hostile{slog.NewTextHandler(io.Discard, nil), func() { <-goOn }})})
	s := &shelf{watch: w}
	w.Join(pressure.Room{Rank: pressure.Sessions, Offer: s.Offer, Shrink: s.Shrink})
	within := func() bool { return w.Stats().Bytes <= 100 }
	for range 3 {
		s.put(pressure.Item{Bytes: 150})
		for late := time.Now().Add(10 * time.Second); !within() && time.Now().Before(late); {
			time.Sleep(time.Millisecond)
		}
		if !within() {
			t.Fatalf("%d bytes are left, of %d", w.Stats().Bytes, 100)
		}
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	if err := w.Close(left); !errors.Is(err, context.Canceled) {
		t.Errorf("Close while the log is told: %v", err)
	}
	close(goOn)
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Q5: more bytes than a number can say are above the limit all the same, and all are taken
// back.
func TestSumBeyondAllNumbers(t *testing.T) {
	w := pressure.New(pressure.Config{Limit: 1 << 40, Go: func(fn func()) { go fn() }})
	const things = 1 << 17
	var held atomic.Int64
	w.Join(pressure.Room{
		Offer: func(context.Context) []pressure.Item {
			return slices.Repeat([]pressure.Item{{Bytes: pressure.MostBytes, Seconds: 1}}, int(held.Load()))
		},
		Shrink: func(_ context.Context, n int64, _ pressure.Tier) (freed pressure.Freed) {
			for ; held.Load() > 0 && freed.Bytes < n; held.Add(-1) {
				freed.Add(pressure.Freed{Bytes: pressure.MostBytes, Leased: pressure.MostBytes})
				w.Add(-pressure.MostBytes)
			}
			return freed
		},
	})
	for n := range int64(things) { // nothing can go yet
		w.Add(pressure.MostBytes)
		if now := w.Stats().Bytes; now < min(n+1, 1<<15-1)*pressure.MostBytes {
			t.Fatalf("%d things are %d bytes", n+1, now)
		}
	}
	held.Store(things)
	for w.Stats().Bytes > 1<<40 {
		w.Add(1 << 36) // a 64th of the limit
		if err := w.Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if held.Load() != 0 {
		t.Errorf("%d things are left", held.Load())
	}
}

// What the memory limit takes of a room is taken in parts, until it is enough.
func TestInParts(t *testing.T) {
	list := make([]int64, 3*pressure.Part)
	for n, parts := range map[int64]int{0: 0, 1: 1, pressure.Part: 1, pressure.Part + 1: 2, 1 << 40: 3} {
		took := 0
		freed := pressure.InParts(list, n, func(part []int64, left int64) pressure.Freed {
			if took++; len(part) > pressure.Part || left != n-int64(took-1)*pressure.Part {
				t.Errorf("a part of %d for %d of %d", len(part), left, n)
			}
			return pressure.Freed{Bytes: int64(len(part)), Leased: 1}
		})
		if took != parts || freed != (pressure.Freed{Bytes: int64(parts) * pressure.Part, Leased: int64(parts)}) {
			t.Errorf("for %d it took %d parts, which gave %v", n, took, freed)
		}
	}
}

// Q5: what is freed down to the very limit, while a shrink that could do nothing ends,
// has the limit hold again from there on.
func TestMetWhileAShrinkEnds(t *testing.T) {
	var w *pressure.Watch
	tries := 0 // between two calls of settle
	free := func() { w.Add(-10) }
	w = pressure.New(pressure.Config{Limit: 6400, Go: func(fn func()) { go fn() },
		Logger: slog.New(hostile{slog.NewTextHandler(io.Discard, nil), free})})
	w.Join(pressure.Room{Offer: func(context.Context) []pressure.Item { tries++; return nil }})
	for n, bytes := range []int64{6410, 10} { // of which 10 go when it warns
		w.Add(bytes)
		settle(t, w)
		if now := w.Stats().Bytes; tries != n+1 || now != 6400 {
			t.Fatalf("tried %d times, want %d, and %d bytes are left", tries, n+1, now)
		}
	}
	if err := w.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
