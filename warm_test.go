package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// costing is the recipe of a key whose making is said to take cost; it counts.
func costing(key string, cost time.Duration, made *atomic.Int64) kiln.Recipe[string] {
	of := func() kiln.Made[string] {
		return kiln.Made[string]{Value: key, Bytes: 1, Cost: cost, Blob: func(context.Context) ([]byte, error) { return []byte(key), nil }}
	}
	return kiln.Recipe[string]{Key: key,
		Make: func(context.Context) (kiln.Made[string], error) { made.Add(1); return of(), nil },
		Load: func(context.Context, []byte) (kiln.Made[string], error) { return of(), nil }}
}

// recorded runs a small program and gives its manifest: four keys, of which the
// third is the dearest, the first was asked for by two sessions, and one has no
// Unicode.
func recorded(t *testing.T, made *atomic.Int64) string {
	t.Helper()
	r := open(t, kiln.Config{Record: true})
	for range 2 {
		s := session(t, r)
		g := group(t, s, 1, 37)
		for range 3 { // two of them hits
			must(kiln.Get(ctx, g, "q", costing("a", time.Second, made)))
		}
		g.Close()
	}
	g := group(t, session(t, r), 2)
	defer g.Close()
	must(kiln.Get(ctx, g, "q", costing("b\"\\", time.Second, made)))
	must(kiln.Get(ctx, g, "k", costing("c", time.Minute, made)))
	must(kiln.Get(ctx, g, "\xff", costing("\x00\xfe", time.Millisecond, made)))
	must(kiln.Get(ctx, g, "alone", kiln.Recipe[string]{Key: "u", Unhashable: "file", Make: costing("u", 1, made).Make}))
	var b bytes.Buffer
	if err := r.Record(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// F1, S9: a manifest names what a run made, once each, and another runtime makes it
// in the order of what it saves; the first requests then find it.
func TestRecordAndWarm(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	made.Store(0)
	r := open(t, kiln.Config{Workers: 1, Record: true})
	var seen []string
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		seen = append(seen, fmt.Sprintf("%s %q %q %v %v %d", e.Backend, e.Key, e.Name, e.Shape, e.Cost, e.Uses))
		if g.Shape() != e.Shape {
			t.Errorf("the group has shape %v, the entry %v", g.Shape(), e.Shape)
		}
		_, err := kiln.Get(ctx, g, e.Name, costing(e.Key, e.Cost, &made))
		return err
	})
	if want := (kiln.Warmed{Made: 4}); err != nil || warmed != want || made.Load() != 4 {
		t.Errorf("%+v, %v, %d made; want %+v", warmed, err, made.Load(), want)
	}
	want := []string{`go "c" "k" [[2]] 1m0s 1`, `go "a" "q" [[1,37]] 1s 2`, `go "b\"\\" "q" [[2]] 1s 1`, `go "\x00\xfe" "\xff" [[2]] 1ms 1`}
	if got := strings.Join(seen, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("asked for\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	var none bytes.Buffer
	if err := r.Record(&none); err != nil || strings.Count(none.String(), "\n") != 1 {
		t.Errorf("a warm-up notes itself: %v, %q", err, none.String())
	}
	g := group(t, session(t, r), 1, 37)
	defer g.Close()
	if must(kiln.Get(ctx, g, "q", costing("a", time.Second, &made))); made.Load() != 4 {
		t.Error("the first request made what was warm")
	}
	if again, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, g, e.Name, costing(e.Key, e.Cost, &made))
		return err
	}); err != nil || again != (kiln.Warmed{Found: 4}) {
		t.Errorf("again: %+v, %v", again, err)
	}
}

// R3: what is missing is said.
func TestWarmAndRecordOfNothing(t *testing.T) {
	r := open(t, kiln.Config{Record: true})
	none := func(context.Context, *kiln.Group, kiln.Entry) error { return nil }
	_, noManifest := r.Warm(ctx, nil, none)
	_, noAsk := r.Warm(ctx, strings.NewReader(""), nil)
	for what, err := range map[string]error{"manifest": noManifest, "function": noAsk, "writer": r.Record(nil)} {
		if !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("no %s: %v", what, err)
		}
	}
}

// F3, P2: bad entries end nothing, what the store has is loaded, and what the
// program no longer has is skipped. Events reach the listener as for any look-up.
func TestWarmCounts(t *testing.T) {
	var made, told atomic.Int64
	manifest := recorded(t, &made)
	dir := filepath.Join(t.TempDir(), "store")
	first := open(t, kiln.Config{StoreDir: dir})
	g := group(t, session(t, first), 1)
	must(kiln.Get(ctx, g, "n", costing("a", time.Second, &made)))
	g.Close()
	if err := first.Close(ctx); err != nil {
		t.Fatal(err)
	}
	log := new(lines)
	r := open(t, kiln.Config{StoreDir: dir, Listen: func(kiln.Event) { told.Add(1) }, Logger: slog.New(slog.NewTextHandler(log, nil))})
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		switch e.Key {
		case "a":
			_, err := kiln.Get(ctx, g, e.Name, costing(e.Key, e.Cost, &made))
			return err
		case "c":
			panic("of the test")
		case "\x00\xfe":
			runtime.Goexit()
		}
		return nil
	})
	if want := (kiln.Warmed{Loaded: 1, Failed: 2, Skipped: 1}); err != nil || warmed != want {
		t.Errorf("%+v, %v; want %+v", warmed, err, want)
	}
	if log.count("kiln: warm\"") != 2 || told.Load() != 1 {
		t.Errorf("%d told, log %q", told.Load(), log.b.String())
	}
}

// F4: the end of the context ends the warm-up; what was not asked for is skipped.
func TestWarmIsCancelled(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	r := open(t, kiln.Config{Workers: 1})
	ctx, cancel := context.WithCancel(ctx)
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, g, e.Name, kiln.Recipe[string]{Key: e.Key, Make: func(ctx context.Context) (kiln.Made[string], error) {
			cancel()
			<-ctx.Done()
			return kiln.Made[string]{}, ctx.Err()
		}}, kiln.Linger(0))
		return err
	})
	if !errors.Is(err, context.Canceled) || warmed != (kiln.Warmed{Skipped: 4}) {
		t.Errorf("%+v, %v", warmed, err)
	}
	if err := r.Close(context.Background()); err != nil {
		t.Error(err)
	}
	none := func(context.Context, *kiln.Group, kiln.Entry) error { return nil }
	if _, err := r.Warm(context.Background(), strings.NewReader(manifest), none); !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// C1: what the artefact cache cannot hold is not made, since it would take the
// place of what is dearer.
func TestWarmKeepsToTheCapacity(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	made.Store(0)
	r := open(t, kiln.Config{ArtefactEntries: kiln.LimitOf(2)})
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, g, e.Name, costing(e.Key, e.Cost, &made))
		return err
	})
	if err != nil || warmed != (kiln.Warmed{Made: 2, Skipped: 2}) || !r.Artefacts().Has("c") {
		t.Errorf("%+v, %v", warmed, err)
	}
}

// No more entries are asked for at a time than there are workers, and as many.
func TestWarmIsBounded(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	const workers = 2
	r := open(t, kiln.Config{Workers: workers})
	var at, most atomic.Int64
	var both sync.WaitGroup // the first two wait for each other
	both.Add(workers)
	var n atomic.Int64
	_, err := r.Warm(ctx, strings.NewReader(manifest), func(context.Context, *kiln.Group, kiln.Entry) error {
		now := at.Add(1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		if n.Add(1) <= workers {
			both.Done()
			both.Wait()
		}
		at.Add(-1)
		return nil
	})
	if err != nil || most.Load() != workers {
		t.Errorf("%d at a time, want %d; %v", most.Load(), workers, err)
	}
}

// K4: kernels of a device are noted by the key of their source and warmed like
// anything else.
func TestWarmKernels(t *testing.T) {
	run := func(manifest string) (string, kiln.Warmed) {
		t.Helper()
		backend := newCounted()
		r := open(t, kiln.Config{Record: true})
		exec := must(r.Executor(ctx, backend, 0))
		if manifest == "" {
			g := group(t, session(t, r), 8)
			defer g.Close()
			must(g.Kernel(ctx, "op", exec, source("f")))
			var b bytes.Buffer
			if err := r.Record(&b); err != nil {
				t.Fatal(err)
			}
			return b.String(), kiln.Warmed{}
		}
		warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
			if e.Key != "f" || e.Backend != backend.Name() {
				t.Errorf("asked for %q of %q", e.Key, e.Backend)
			}
			_, err := g.Kernel(ctx, e.Name, exec, source(e.Key))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return "", warmed
	}
	manifest, _ := run("")
	if _, warmed := run(manifest); warmed != (kiln.Warmed{Made: 1}) {
		t.Errorf("%+v from %s", warmed, manifest)
	}
}

// C11: what Warm makes of kernels that are there counts as loaded.
func TestWarmOfKernelsThatAreThere(t *testing.T) {
	r := open(t, kiln.Config{Record: true, Workers: 1})
	recipe := func(key string) kiln.Recipe[int] {
		return kiln.Recipe[int]{Key: key, Make: func(ctx context.Context) (kiln.Made[int], error) {
			_, err := r.Artefacts().Kernel(ctx, artefacts.Request{Key: "shared", Create: func(context.Context) (artefacts.Built, error) { return artefacts.Built{}, nil }})
			return kiln.Made[int]{Value: 7}, err
		}}
	}
	g := group(t, session(t, r), 1)
	defer g.Close()
	for _, key := range []string{"a", "b"} {
		must(kiln.Get(ctx, g, key, recipe(key)))
	}
	var manifest bytes.Buffer
	if err := r.Record(&manifest); err != nil {
		t.Fatal(err)
	}
	r = open(t, kiln.Config{Workers: 1})
	warmed, err := r.Warm(ctx, &manifest, func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, g, e.Name, recipe(e.Key))
		return err
	})
	if err != nil || warmed != (kiln.Warmed{Made: 1, Loaded: 1}) {
		t.Errorf("%+v, %v", warmed, err)
	}
}

// A manifest that is not one, or not of this kind, is ErrInvalid with its line.
func TestBadManifest(t *testing.T) {
	const head = `{"kiln_manifest":2}` + "\n"
	const good = `{"backend":"go","key":"k","name":"n","shape":"[[1]]","seconds":1,"uses":1}`
	r := open(t, kiln.Config{})
	if err := r.Record(new(bytes.Buffer)); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("without Config.Record: %v", err)
	}
	for text, line := range map[string]string{
		"":                    "manifest:1:",
		`{"kiln_manifest":1}`: `manifest:1: no {"kiln_manifest":2}, what Runtime.Record of package kiln writes, for its Runtime.Warm: this is a manifest of kind 1, what kiln run --record writes`,
		head + good + "\n" + strings.Replace(good, `"k"`, `""`, 1):        "manifest:3: key is empty: want",
		head + strings.Replace(good, `"k"`, `"\\q"`, 1):                   `manifest:2: "\\q": want a text`,
		head + strings.Replace(good, `"k"`, `"\""`, 1):                    "manifest:2:",
		head + strings.Replace(good, `[[1]]`, `[[`, 1):                    "manifest:2: shape: ",
		head + strings.Replace(good, `"seconds":1`, `"seconds":-1`, 1):    "manifest:2: seconds is -1: want from 0 to 4294967296",
		head + strings.Replace(good, `"seconds":1`, `"seconds":1e300`, 1): "manifest:2: seconds is 1e+300: want",
		head + strings.Replace(good, `"uses":1`, `"uses":-1`, 1):          "manifest:2: uses is -1: want 0 or more",
		head + strings.Replace(good, `"uses":1`, `"uses":1,"x":1`, 1):     "manifest:2:",
		head + strings.Repeat("x", 1<<21):                                 "manifest:2:",
	} {
		asked := false
		_, err := r.Warm(ctx, strings.NewReader(text), func(context.Context, *kiln.Group, kiln.Entry) error { asked = true; return nil })
		if !errors.Is(err, kiln.ErrInvalid) || !strings.HasPrefix(err.Error(), line) || asked {
			t.Errorf("%.60q: %v, want %s", text, err, line)
		}
	}
}

// What is noted is bounded, and any bytes that a key may have are read back.
func TestRecordIsBounded(t *testing.T) {
	log := new(lines)
	r := open(t, kiln.Config{Record: true, ArtefactEntries: kiln.LimitOf(4), Logger: slog.New(slog.NewTextHandler(log, nil))})
	g := group(t, session(t, r), 1)
	random := rand.New(rand.NewPCG(1, 2))
	keys := map[string]bool{}
	for i := range 4 {
		raw := make([]byte, 60<<10)
		for j := range raw {
			raw[j] = byte(random.Uint32())
		}
		keys[string(raw)] = true
		must(kiln.Get(ctx, g, strconv.Itoa(i), of(string(raw), 1)))
	}
	must(kiln.Get(ctx, g, "huge", of(strings.Repeat("k", 65<<10), 1))) // more than a line takes
	g.Close()
	var b bytes.Buffer
	if err := r.Record(&b); err != nil {
		t.Fatal(err)
	}
	if log.count("more artefacts than can be noted") != 1 || log.count("uses_not_noted=") != 1 {
		t.Errorf("log %q", log.b.String())
	}
	n := 0
	other := open(t, kiln.Config{Workers: 1})
	if _, err := other.Warm(ctx, &b, func(_ context.Context, _ *kiln.Group, e kiln.Entry) error {
		if !keys[e.Key] {
			t.Error("a key that nobody asked for")
		}
		n++
		return nil
	}); err != nil || n != len(keys) {
		t.Errorf("%d of %d keys, %v", n, len(keys), err)
	}
}

// The notes of a program that never asks for the same key twice end at 16 MiB.
func TestRecordEnds(t *testing.T) {
	log := new(lines)
	r := open(t, kiln.Config{Record: true, Logger: slog.New(slog.NewTextHandler(log, nil))})
	g := group(t, session(t, r), 1)
	defer g.Close()
	long := strings.Repeat("k", 63<<10)
	for i := range 270 {
		key := strconv.Itoa(i) + long
		must(kiln.Get(ctx, g, strconv.Itoa(i), of(key, 1)))
		g.Remove(strconv.Itoa(i))
	}
	var b bytes.Buffer
	if err := r.Record(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len() > 17<<20 || b.Len() < 15<<20 || log.count("more artefacts than can be noted") != 1 {
		t.Errorf("%d bytes, log %q", b.Len(), log.b.String())
	}
}

// F10, S9: a manifest has what making cost at most, however cheap another run was, and
// is in the order of what it saves: cost times uses.
func TestRecordsWhatItSaves(t *testing.T) {
	var made atomic.Int64
	r := open(t, kiln.Config{Record: true, ArtefactEntries: kiln.LimitOf(1)})
	get := func(key string, cost time.Duration) {
		s := session(t, r)
		g := group(t, s, 1)
		must(kiln.Get(ctx, g, "n", costing(key, cost, &made)))
		g.Close()
		if err := s.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	get("often", 2*time.Second)
	get("dear", 3*time.Second)
	get("often", time.Millisecond) // made again: it was evicted, and nobody holds it
	if made.Load() != 3 {
		t.Fatalf("%d made, want 3", made.Load())
	}
	var b bytes.Buffer
	if err := r.Record(&b); err != nil {
		t.Fatal(err)
	}
	var order []string
	_, err := open(t, kiln.Config{Workers: 1}).Warm(ctx, &b, func(_ context.Context, _ *kiln.Group, e kiln.Entry) error {
		order = append(order, fmt.Sprint(e.Key, " ", e.Cost, " ", e.Uses))
		return nil
	})
	if got := strings.Join(order, ", "); err != nil || got != "often 2s 2, dear 3s 1" {
		t.Errorf("asked for %s, %v", got, err)
	}
}

// S4: the shapes of a manifest were bucketed when they were noted, by the bucketing of
// their sessions: whatever is the default where they are warmed leaves them alone.
func TestWarmBucketsNothing(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	r := open(t, kiln.Config{Lookup: environment(map[string]string{"KILN_BUCKET": "pow2"})})
	g := group(t, session(t, r), 1, 37)
	defer g.Close()
	if g.Shape().String() != "[[1,64]]" {
		t.Fatalf("the default of this runtime gives %v", g.Shape())
	}
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(_ context.Context, g *kiln.Group, e kiln.Entry) error {
		if g.Shape() != e.Shape {
			t.Errorf("the group has shape %v, the entry %v", g.Shape(), e.Shape)
		}
		return nil
	})
	if err != nil || warmed != (kiln.Warmed{Skipped: 4}) {
		t.Errorf("%+v, %v", warmed, err)
	}
}

// What Record writes Warm reads, whatever the costs are said to be.
func TestRecordOfEndlessCosts(t *testing.T) {
	var made atomic.Int64
	r := open(t, kiln.Config{Record: true})
	g := group(t, session(t, r), 1)
	must(kiln.Get(ctx, g, "n", costing("k", math.MaxInt64, &made)))
	g.Close()
	var manifest bytes.Buffer
	if err := r.Record(&manifest); err != nil {
		t.Fatal(err)
	}
	asked := 0
	if _, err := r.Warm(ctx, &manifest, func(_ context.Context, _ *kiln.Group, e kiln.Entry) error {
		asked++
		if e.Key != "k" || e.Cost <= 0 {
			t.Errorf("%+v", e)
		}
		return nil
	}); err != nil || asked != 1 {
		t.Errorf("%d entries, %v", asked, err)
	}
}

// F4, F6: Warm returns when its context ends, also where nothing that it began heeds that:
// neither a creator, nor the function that asks. The runtime's Close waits for those.
func TestWarmLeavesWhatHeedsNothing(t *testing.T) {
	var manifest string
	t.Run("recorded", func(t *testing.T) { manifest = recorded(t, new(atomic.Int64)) })
	actorstest.Bubble(t, func(t *testing.T) {
		r := open(t, kiln.Config{})
		for _, asks := range []bool{true, false} {
			goOn := make(chan struct{})
			var over atomic.Int64
			heedless := func() { <-goOn; over.Add(1) }
			warming, leave := context.WithTimeout(ctx, time.Minute)
			_, err := r.Warm(warming, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
				if !asks {
					heedless()
					return nil
				}
				_, err := kiln.Get(ctx, g, e.Name, kiln.Recipe[int]{Key: e.Key, Make: func(context.Context) (kiln.Made[int], error) {
					heedless()
					return kiln.Made[int]{}, nil
				}})
				return err
			})
			if !errors.Is(err, context.DeadlineExceeded) || over.Load() != 0 {
				t.Errorf("by creators %v: %v, and %d ended", asks, err, over.Load())
			}
			leave()
			if asks {
				close(goOn)
				continue
			}
			closed := make(chan error, 1)
			go func() { closed <- r.Close(ctx) }()
			synctest.Wait()
			if len(closed) > 0 {
				t.Error("the runtime was closed beside what Warm began")
			}
			close(goOn)
			if err := <-closed; err != nil || over.Load() == 0 {
				t.Errorf("%v, %d ended", err, over.Load())
			}
		}
	})
}

// over is a context that has ended for those who ask for its error, when it says so.
type over struct {
	context.Context
	ended *atomic.Bool
}

func (o over) Err() error {
	if o.ended.Load() {
		return context.Canceled
	}
	return o.Context.Err()
}

// F4: an entry whose function ends with the context is none that failed: it was not asked
// to the end.
func TestWarmEndsDuringAnEntry(t *testing.T) {
	manifest := recorded(t, new(atomic.Int64))
	r := open(t, kiln.Config{Workers: 1})
	var ended atomic.Bool
	warmed, err := r.Warm(over{ctx, &ended}, strings.NewReader(manifest), func(context.Context, *kiln.Group, kiln.Entry) error {
		ended.Store(true)
		return context.Canceled
	})
	if !errors.Is(err, context.Canceled) || warmed != (kiln.Warmed{Skipped: 4}) {
		t.Errorf("%+v, %v", warmed, err)
	}
}

// F8: a runtime that is closed beside Warm ends it: it waits for no entry that it has not
// asked for.
func TestWarmOfAClosedRuntime(t *testing.T) {
	manifest := recorded(t, new(atomic.Int64))
	r := open(t, kiln.Config{Workers: 1})
	closing, leave := context.WithCancel(ctx)
	leave() // it waits for nothing
	warming, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	_, err := r.Warm(warming, strings.NewReader(manifest), func(_ context.Context, g *kiln.Group, _ kiln.Entry) error {
		_ = r.Close(closing) // goes on
		eventually(t, func() bool { return errors.Is(kiln.Set(ctx, g, "n", kiln.Made[int]{}), kiln.ErrClosed) })
		return nil
	})
	if !errors.Is(err, kiln.ErrClosed) || warming.Err() != nil {
		t.Errorf("%v, %v", err, warming.Err())
	}
}

// F4: the function that asks may use goroutines: their look-ups are one entry, which counts
// by the worst of them. The race detector sees them meet.
func TestWarmAsksFromGoroutines(t *testing.T) {
	var made atomic.Int64
	manifest := recorded(t, &made)
	r := open(t, kiln.Config{Workers: 1})
	warmed, err := r.Warm(ctx, strings.NewReader(manifest), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
		_, err := kiln.Get(ctx, g, e.Name, costing(e.Key, time.Second, &made))
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for range 50 { // hits
					must(kiln.Get(ctx, g, e.Name, costing(e.Key, time.Second, &made)))
				}
			})
		}
		asking.Wait()
		return err
	})
	if want := (kiln.Warmed{Made: 4}); err != nil || warmed != want {
		t.Errorf("%+v, %v; want %+v", warmed, err, want)
	}
}

// G13, S7: entries of one name and shape, which two sessions had for keys of their own, are
// asked for beside each other.
func TestWarmOfOneNameInTwoSessions(t *testing.T) {
	actorstest.Bubble(t, func(t *testing.T) {
		goOn := make(chan struct{})
		recipe := func(key string, goOn chan struct{}) kiln.Recipe[string] {
			return kiln.Recipe[string]{Key: key, Make: func(context.Context) (kiln.Made[string], error) {
				<-goOn
				return kiln.Made[string]{Value: key}, nil
			}}
		}
		closed := make(chan struct{})
		close(closed)
		var manifest bytes.Buffer
		r := open(t, kiln.Config{Record: true})
		for _, key := range []string{"of model a", "of model b"} {
			g := group(t, session(t, r), 1, 128)
			must(kiln.Get(ctx, g, "query", recipe(key, closed)))
			g.Close()
		}
		if err := r.Record(&manifest); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { close(goOn) })
		warmed, err := open(t, kiln.Config{Workers: 2}).Warm(ctx, &manifest, func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
			return second(kiln.Get(ctx, g, e.Name, recipe(e.Key, goOn)))
		})
		if want := (kiln.Warmed{Made: 2}); err != nil || warmed != want {
			t.Errorf("%+v, %v; want %+v", warmed, err, want)
		}
	})
}
