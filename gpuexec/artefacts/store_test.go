package artefacts_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

// shelf is a store in memory that checks how it is used.
type shelf struct {
	t    testing.TB
	gate chan struct{} // what Save waits for, if not nil
	full error         // what Save answers
	cost time.Duration // what it says that its blobs took

	mu struct {
		sync.Mutex
		blobs   map[string]string
		next    map[string]string // what others build once a blob was refused
		needs   []string          // of the blob that was saved last
		refused map[string]bool
		finds   int
		open    int // claims that have not ended
		saves   int
	}
}

func newShelf(t testing.TB) *shelf {
	s := &shelf{t: t}
	s.mu.blobs, s.mu.next, s.mu.refused = map[string]string{}, map[string]string{}, map[string]bool{}
	return s
}

func (s *shelf) Find(_ context.Context, sub artefacts.Subject) artefacts.Found {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.finds++
	s.mu.open++
	claim := &claim{shelf: s, key: sub.Backend + "/" + sub.Key}
	if blob, ok := s.mu.blobs[claim.key]; ok {
		return artefacts.Found{Blob: []byte(blob), Cost: s.cost, Claim: claim}
	}
	if s.mu.refused[claim.key] {
		return artefacts.Found{Reason: fault.Outdated, Field: "driver", Claim: claim}
	}
	return artefacts.Found{Reason: fault.Absent, Claim: claim}
}

type claim struct {
	*shelf
	key   string
	ended bool
}

func (c *claim) end() {
	if c.ended {
		c.t.Errorf("the claim on %s ended twice", c.key)
	}
	c.ended = true
	c.mu.open--
}

func (c *claim) Loaded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

func (c *claim) Refused(context.Context) artefacts.Found {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next, ok := c.mu.next[c.key]; ok {
		delete(c.mu.next, c.key)
		c.mu.blobs[c.key] = next
		return artefacts.Found{Blob: []byte(next), Claim: c}
	}
	delete(c.mu.blobs, c.key)
	c.mu.refused[c.key] = true
	return artefacts.Found{Reason: fault.DriverRefused, Claim: c}
}

func (c *claim) Save(_ context.Context, blob []byte, cost time.Duration, requires []string) error {
	if c.gate != nil {
		<-c.gate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	c.mu.saves++
	if cost != time.Second {
		c.t.Errorf("saved with a cost of %v, want what the creator reported", cost)
	}
	if c.full != nil {
		return c.full
	}
	c.mu.blobs[c.key], c.mu.needs = string(blob), requires
	return nil
}

func (c *claim) Abandon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// counts gives the entries, the finds and the claims that have not ended.
func (s *shelf) counts() [3]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [3]int{len(s.mu.blobs), s.mu.finds, s.mu.open}
}

func stored(s *shelf, n int64) artefacts.Config {
	return artefacts.Config{Entries: limit.Of(n), Store: s}
}

func (r room) settle() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(background, patience)
	defer cancel()
	if err := r.Settle(ctx); err != nil {
		r.t.Error(err)
	}
}

// P6, C8: memory, store, build; a build is stored once.
func TestStoreOrder(t *testing.T) {
	s := newShelf(t)
	c := open(t, stored(s, 1))
	want(t, "cold", c.get("a", maker{value: "va"}), "va by=miss")
	want(t, "warm", c.get("a", maker{}), "va by=hit")
	c.settle()
	want(t, "stored", s.counts(), [3]int{1, 1, 0})
	want(t, "b", c.get("b", maker{}), "b by=miss")
	c.settle()
	want(t, "a again", c.get("a", maker{value: "x"}), "va by=persistent_hit")
	want(t, "a again", c.get("a", maker{value: "x"}), "va by=hit")
	want(t, "creations", c.count(c.mu.creations, "a", "b"), 2)
	want(t, "loads", c.count(c.mu.loads, "a", "b"), 1)
	want(t, "loads", c.Stats().Loads, 1)
	c.settle()
	want(t, "stored", s.counts(), [3]int{2, 3, 0})

	d := open(t, stored(s, 1))
	want(t, "next process", d.get("a", maker{value: "x"}), "va by=persistent_hit")
	want(t, "events", d.events("a"), "persistent_hit")
}

// S6, S9: what came out of the store took what building it took, not what loading
// it does.
func TestCostOfWhatWasStored(t *testing.T) {
	for _, c := range []struct{ stored, want time.Duration }{{time.Minute, time.Minute}, {0, time.Second}} {
		s := newShelf(t)
		s.mu.blobs["test/k"], s.cost = "blob:v", c.stored
		r := open(t, stored(s, 1))
		l, o, err := r.Get(background, r.request(r.Cache, "k", maker{})) // its Load reports a second
		if err != nil || o.Event != artefacts.PersistentHit {
			t.Fatal(o, err)
		}
		want(t, "cost", l.Cost(), c.want)
		l.End()
	}
}

// C6: a forced one leaves what is stored.
func TestForceLeavesTheStore(t *testing.T) {
	s := newShelf(t)
	c := open(t, stored(s, 8))
	c.get("k", maker{value: "first"})
	c.settle()
	want(t, "force", said(c.Force(background, c.request(c.Cache, "k", maker{value: "second"}))), "second by=miss")
	c.settle()
	want(t, "counts", s.counts(), [3]int{1, 1, 0})
	want(t, "blob", s.mu.blobs["test/k"], "blob:first")
}

// C1, K6: what must not be stored does not reach the store.
func TestStoreIsNotAsked(t *testing.T) {
	s := newShelf(t)
	c := open(t, stored(s, 0))
	want(t, "at capacity 0", c.get("k", maker{}), "k by=miss")
	c.setEntries(8)
	r := c.request(c.Cache, "k", maker{})
	r.Unhashable = "include"
	want(t, "unhashable", said(c.Get(background, r)), "k by=miss")
	r = c.request(c.Cache, "k", maker{})
	r.Load = nil
	want(t, "not loadable", said(c.Get(background, r)), "k by=miss")
	c.settle()
	want(t, "counts", s.counts(), [3]int{0, 0, 0})
}

// P11, R1: a driver that refuses: rebuilt and replaced, with its reason, and told.
func TestDriverRefuses(t *testing.T) {
	s := newShelf(t)
	s.mu.blobs["test/k"] = "blob:old"
	var log told
	c := open(t, log.listen(stored(s, 8), slog.LevelWarn))
	l, o, err := c.Get(background, c.request(c.Cache, "k", maker{value: "new", refuse: true}))
	want(t, "reason", o.Reason, fault.DriverRefused)
	want(t, "told", log.lines("not loaded"), 1)
	want(t, "get", said(l, o, err), "new by=miss")
	c.settle()
	want(t, "counts", s.counts(), [3]int{1, 1, 0})
	want(t, "blob", s.mu.blobs["test/k"], "blob:new")
	want(t, "reasons", c.Stats().Reasons[fault.DriverRefused], 1)
	want(t, "absent", c.Stats().Reasons[fault.Absent], 0)
}

// P8, P11: what another process built in the place of a refused blob is taken.
func TestDriverRefusesThenTakes(t *testing.T) {
	s := newShelf(t)
	s.mu.blobs["test/k"], s.mu.next["test/k"] = "blob:old", "blob:new"
	c := open(t, stored(s, 8))
	l, o, err := c.Get(background, c.request(c.Cache, "k", maker{value: "own", bad: "blob:old"}))
	want(t, "reason", o.Reason, "")
	want(t, "get", said(l, o, err), "new by=persistent_hit")
	want(t, "creations", c.count(c.mu.creations, "k"), 0)
	want(t, "claims", s.counts(), [3]int{1, 1, 0})
}

// K7: what the creator says that its blob needs reaches the store.
func TestRequires(t *testing.T) {
	s := newShelf(t)
	c := open(t, stored(s, 8))
	c.get("k", maker{requires: []string{"avx2"}})
	c.settle()
	want(t, "needs", strings.Join(s.mu.needs, " "), "avx2")
}

// R1: the store's reason and field are the miss's.
func TestStoreReason(t *testing.T) {
	s := newShelf(t)
	s.mu.refused["test/k"] = true
	c := open(t, stored(s, 8))
	_, o, err := c.Get(background, c.request(c.Cache, "k", maker{fail: "E"}))
	want(t, "error", word(err), "failed E")
	want(t, "reason", o.Reason, fault.Outdated)
	want(t, "field", o.Field, "driver")
	want(t, "claims", s.counts(), [3]int{0, 1, 0})
	want(t, "reasons", c.Stats().Reasons[fault.Outdated], 1)
}

// P5: a store that cannot save never fails a request. Backends without blobs
// give their claims back.
func TestStoreTrouble(t *testing.T) {
	s := newShelf(t)
	s.full = errors.New("no space")
	c := open(t, stored(s, 8))
	want(t, "get", c.get("k", maker{}), "k by=miss")
	want(t, "no blob", c.get("j", maker{noBlob: true}), "j by=miss")
	r := c.request(c.Cache, "p", maker{})
	create := r.Create
	r.Create = func(ctx context.Context) (artefacts.Built, error) {
		b, err := create(ctx)
		b.Blob = func(context.Context) ([]byte, error) { panic("in the driver") }
		return b, err
	}
	want(t, "panicking blob", said(c.Get(background, r)), "p by=miss")
	c.settle()
	want(t, "counts", s.counts(), [3]int{0, 3, 0})
	want(t, "degraded", c.Stats().Reasons[fault.Degraded], 1)
	want(t, "resident", c.has("k", "j", "p"), 3)
}

// P6: stored off the caller's path. Settle waits for it; so does Close.
func TestSettle(t *testing.T) {
	s := newShelf(t)
	s.gate = make(chan struct{})
	c := open(t, stored(s, 1))
	want(t, "get", c.get("a", maker{}), "a by=miss") // does not wait for the gate
	want(t, "get", c.get("b", maker{}), "b by=miss") // a is evicted and still being stored
	ctx, cancel := context.WithCancel(background)
	cancel()
	if err := c.Settle(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v", err)
	}
	want(t, "freed", c.count(c.mu.freed, "a"), 0)
	c.setEntries(1)                        // a turn after the one that began the second store
	want(t, "pending", c.Stats().Saves, 2) // P18
	settled := make(chan error, 1)
	go func() { settled <- c.Settle(background) }()
	close(s.gate)
	if err := <-settled; err != nil {
		t.Error(err)
	}
	want(t, "counts", s.counts(), [3]int{2, 2, 0})
	want(t, "pending at the end", c.Stats().Saves, 0)
	c.eventuallyFreed("a", 1)
}

// F4, P6: what succeeds while the cache closes is stored like any other, and Close waits
// for it; with capacity 0 it is not (C1).
func TestStoredWhileClosing(t *testing.T) {
	for entries, blobs := range []int{0, 1} {
		s := newShelf(t)
		bubble(t, stored(s, int64(entries)), func(t *testing.T, c room) {
			g := gate()
			a := c.calls(background, 1, "k", maker{wait: g, stubborn: true})
			over, cancel := context.WithCancel(background)
			cancel()
			if err := c.Close(over); !errors.Is(err, context.Canceled) {
				t.Errorf("close beside a creator: %v", err)
			}
			want(t, "caller", <-a, "error closed")
			close(g)
			c.close()
			got := s.counts()
			want(t, "stored", got[0], blobs)
			want(t, "open claims", got[2], 0)
		})
	}
}

// F4: a claim is given back when nobody is left.
func TestDesertedWithAClaim(t *testing.T) {
	s := newShelf(t)
	bubble(t, stored(s, 4), func(t *testing.T, c room) {
		ctx, cancel := context.WithCancel(background)
		a := c.calls(ctx, 1, "k", maker{wait: gate()})
		cancel()
		want(t, "caller", <-a, "error canceled")
	})
	want(t, "counts", s.counts(), [3]int{0, 1, 0})
}

// F3: a Blob that ends its goroutine leaves no claim behind.
func TestBlobThatEndsItsGoroutine(t *testing.T) {
	s := newShelf(t)
	c := open(t, stored(s, 4))
	r := c.request(c.Cache, "a", maker{})
	r.Create = func(context.Context) (artefacts.Built, error) {
		b := c.built("a", maker{})
		b.Blob = func(context.Context) ([]byte, error) { runtime.Goexit(); return nil, nil }
		return b, nil
	}
	want(t, "get", said(c.Get(background, r)), "a by=miss")
	c.settle()
	want(t, "entries, finds, open claims", s.counts(), [3]int{0, 1, 0})
	c.setEntries(0)
	c.eventuallyFreed("a", 1) // the write's own hold has ended
}

// P18: settling waits for the stores that were pending then, not for later ones.
func TestSettleWaitsForThoseOfThen(t *testing.T) {
	bubble(t, stored(newShelf(t), 4), func(t *testing.T, c room) {
		slow := func(key string) chan struct{} {
			g := gate()
			r := c.request(c.Cache, key, maker{})
			r.Create = func(context.Context) (artefacts.Built, error) {
				b := c.built(key, maker{})
				b.Blob = func(context.Context) ([]byte, error) { <-g; return []byte(key), nil }
				return b, nil
			}
			want(t, "get", said(c.Get(background, r)), key+" by=miss")
			return g
		}
		a := slow("a")
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- c.Settle(background) }()
		synctest.Wait()
		b := slow("b")
		go func() { second <- c.Settle(background) }()
		synctest.Wait()
		want(t, "answered", len(first)+len(second), 0)
		close(a)
		want(t, "first", <-first, nil)
		synctest.Wait()
		want(t, "the second", len(second), 0)
		close(b)
		want(t, "second", <-second, nil)
	})
}

// waits is a store that is asked until nobody wants the answer any more.
type waits struct{ *shelf }

func (w waits) Find(ctx context.Context, sub artefacts.Subject) artefacts.Found {
	<-ctx.Done()
	return w.shelf.Find(ctx, sub)
}

// F4: where everybody left while the store was asked, no creator begins.
func TestDesertedWhileTheStoreIsAsked(t *testing.T) {
	s := newShelf(t)
	bubble(t, artefacts.Config{Store: waits{s}}, func(t *testing.T, c room) {
		ctx, cancel := context.WithCancel(background)
		a := c.calls(ctx, 1, "k", maker{})
		cancel()
		want(t, "caller", <-a, "error canceled")
		synctest.Wait()
		want(t, "creations", c.count(c.mu.creations, "k"), 0)
		want(t, "open claims", s.counts()[2], 0)
	})
}

// angry is a store whose calls panic.
type angry struct{ what string }

func (a angry) panics(what string) {
	if a.what == what {
		panic("store")
	}
}

func (a angry) Find(context.Context, artefacts.Subject) artefacts.Found {
	a.panics("find")
	if a.what == "refused" || a.what == "loaded" {
		return artefacts.Found{Blob: []byte("x"), Claim: a}
	}
	return artefacts.Found{Reason: fault.Absent, Claim: a}
}

func (a angry) Loaded() { a.panics("loaded") }

func (a angry) Refused(context.Context) artefacts.Found {
	a.panics("refused")
	return artefacts.Found{Reason: fault.Absent, Claim: a}
}

func (a angry) Save(context.Context, []byte, time.Duration, []string) error {
	a.panics("save")
	return nil
}

func (a angry) Abandon() { a.panics("abandon") }

// P5: a store that panics fails no request.
func TestStoreThatPanics(t *testing.T) {
	for _, what := range []string{"find", "loaded", "refused", "save", "abandon"} {
		c, err := artefacts.Open(artefacts.Config{Store: angry{what}})
		if err != nil {
			t.Fatal(err)
		}
		made := artefacts.Built{Value: 1}
		if what == "save" {
			made.Blob = func(context.Context) ([]byte, error) { return []byte("x"), nil }
		}
		l, _, err := c.Get(background, artefacts.Request{Key: "k",
			Create: func(context.Context) (artefacts.Built, error) { return made, nil },
			Load: func(context.Context, []byte) (artefacts.Built, error) {
				if what == "refused" {
					return artefacts.Built{}, fault.ErrRefused
				}
				return made, nil
			}})
		if err != nil || l.Value() != 1 {
			t.Errorf("%s: %v", what, err)
		}
		l.End()
		if err := c.Close(background); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// P11: an error of a driver that says nothing of the blob sets nothing aside: what is
// stored stays for the next time, and nobody holds its claim.
func TestLoadErrorsThatDoNotBlameTheBlob(t *testing.T) {
	for _, other := range []error{fault.ErrDeviceLost, fault.ErrUnavailable, fault.ErrTooLarge, fault.ErrOverloaded, fault.ErrClosed} {
		s := newShelf(t)
		s.mu.blobs["test/k"] = "blob:v"
		c := open(t, stored(s, 4))
		r := c.request(c.Cache, "k", maker{value: "made"})
		r.Load = func(context.Context, []byte) (artefacts.Built, error) { return artefacts.Built{}, other }
		l, o, err := c.Get(background, r)
		want(t, "get", said(l, o, err), "made by=miss")
		want(t, "reason", o.Reason, fault.Degraded)
		c.settle()
		want(t, "entries, finds, open claims", s.counts(), [3]int{1, 1, 0})
		_, _, err = c.FromBlob(background, c.request(c.Cache, "other", maker{}), []byte("junk"))
		want(t, "junk", word(err), "refused")
		r.Key = "direct"
		if _, _, err := c.FromBlob(background, r, []byte("blob:v")); !errors.Is(err, other) || errors.Is(err, fault.ErrRefused) {
			t.Errorf("%v of a device: %v", other, err)
		}
		next := open(t, stored(s, 4))
		want(t, "next", next.get("k", maker{}), "v by=persistent_hit")
	}
}

// B3: a Load that reports what no artefact could have is a refusal.
func TestLoadOfNegativeBytes(t *testing.T) {
	c, err := artefacts.Open(artefacts.Config{Store: angry{"refused"}})
	if err != nil {
		t.Fatal(err)
	}
	freed := 0
	l, o, err := c.Get(background, artefacts.Request{Key: "k",
		Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{Value: "made"}, nil },
		Load: func(context.Context, []byte) (artefacts.Built, error) {
			return artefacts.Built{Value: "loaded", Bytes: -1, Free: func() { freed++ }}, nil
		}})
	if err != nil || l.Value() != "made" || o.Event != artefacts.Miss || freed != 1 {
		t.Errorf("%v %v, freed %d times", o, err, freed)
	}
	l.End()
	if err := c.Close(background); err != nil {
		t.Error(err)
	}
}

// P17: a kernel whose device gives no blobs counts as disabled, each, and is logged once for
// its backend. It was not counted.
func TestKernelsWithoutBlobsAreCounted(t *testing.T) {
	log := new(strings.Builder)
	c, err := artefacts.Open(artefacts.Config{Store: newShelf(t), Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "a"} {
		l, _, err := c.Get(t.Context(), artefacts.Request{Key: key, StoredKey: key, Backend: "gpu",
			Create: func(context.Context) (artefacts.Built, error) {
				return artefacts.Built{Blob: func(context.Context) ([]byte, error) { return nil, fault.ErrUnsupported }}, nil
			},
			Load: func(context.Context, []byte) (artefacts.Built, error) { return artefacts.Built{}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		l.End()
	}
	if err := errors.Join(c.Settle(t.Context()), c.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	if n := c.Stats().Reasons[fault.Disabled]; n != 2 || strings.Count(log.String(), "it gives no blobs") != 1 {
		t.Errorf("counted %d of 2, logged %s", n, log)
	}
}

// R3: the log has keys as people can read them, quoted and cut. It had all bytes of them.
func TestKeysInTheLogAreReadable(t *testing.T) {
	log, store := new(strings.Builder), newShelf(t)
	store.full = fault.ErrTooLarge
	c, err := artefacts.Open(artefacts.Config{Store: store, Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	key := strings.Repeat("\x01", 300)
	l, _, err := c.Get(t.Context(), artefacts.Request{Key: key, Backend: "gpu",
		Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return []byte("blob"), nil }}, nil
		},
		Load: func(context.Context, []byte) (artefacts.Built, error) { return artefacts.Built{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if err := errors.Join(c.Settle(t.Context()), c.SetCapacity(limit.Of(0), limit.Limit{}), c.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"artefacts: made", "artefacts: not stored", "artefacts: evicted"} {
		if !strings.Contains(log.String(), what) {
			t.Errorf("not logged: %s", what)
		}
	}
	for line := range strings.Lines(log.String()) {
		if len(line) > 600 {
			t.Errorf("%d bytes: %s", len(line), line)
		}
	}
}
