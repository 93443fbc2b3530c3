//go:build unix

package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

// bench is one process: a store, its tiers, an artefact cache on them.
type bench struct {
	t     *testing.T
	store *blobstore.Store
	tiers *tiers.Tiers
	cache *artefacts.Cache

	mu    sync.Mutex
	ahead time.Duration
	fault map[string]error
	room  *pressure.Room // the memory tier as the memory limit sees it
	runs  map[string]int
	loads map[string]int
}

func (b *bench) now() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Now().Add(b.ahead)
}

func (b *bench) op(op string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault[op]
}

func (b *bench) set(op string, err error, ahead time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = map[string]error{op: err}
	b.ahead += ahead
}

func open(t *testing.T, dir string, entries int64, memory int64, options ...func(*blobstore.Config)) *bench {
	t.Helper()
	b := &bench{t: t, runs: map[string]int{}, loads: map[string]int{}}
	cfg := blobstore.Config{
		Dir: dir, Capacity: limit.Of(1 << 20), Durability: blobstore.Full, Lease: time.Second, Now: b.now,
		Identity: func(string) gpuexec.Identity {
			return gpuexec.Identity{Library: "1", Build: "b", ISA: []string{"avx2"}}
		},
	}
	for _, o := range options {
		o(&cfg)
	}
	watch := pressure.New(pressure.Config{Limit: 1 << 40})
	var err error
	faulty := vfs.With(background, func(root string) vfs.FS { return vfs.Watch(vfs.Dir(root), b.op) })
	if b.store, err = blobstore.Open(faulty, cfg); err != nil {
		t.Fatal(err)
	}
	if b.tiers, err = tiers.Open(b.store, hidden.With(tiers.Config{Memory: memory}, watch)); err != nil {
		t.Fatal(err)
	}
	if rooms := watch.Rooms(); len(rooms) > 0 { // there is a memory tier
		b.room = rooms[0]
	}
	if b.cache, err = artefacts.Open(artefacts.Config{Entries: limit.Of(entries), Store: b.tiers}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(b.cache.Close(background), b.tiers.Close(background), b.store.Close(background)); err != nil {
			t.Error(err)
		}
	})
	return b
}

type maker struct {
	value    string
	refuse   string // the blob that the driver refuses; "*" = any
	gate     chan struct{}
	requires []string
}

func (b *bench) get(key string, m maker) string {
	built := func(v string) artefacts.Built {
		return artefacts.Built{Value: v, Bytes: 1, Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return []byte(v), nil }}
	}
	lease, o, err := b.cache.Get(background, artefacts.Request{
		Key: key, Backend: "test",
		Create: func(ctx context.Context) (artefacts.Built, error) {
			b.mu.Lock()
			b.runs[key]++
			b.mu.Unlock()
			if m.gate != nil {
				select {
				case <-m.gate:
				case <-ctx.Done():
				}
			}
			b := built(m.value)
			b.Requires = m.requires
			return b, nil
		},
		Load: func(_ context.Context, blob []byte) (artefacts.Built, error) {
			b.mu.Lock()
			b.loads[key]++
			b.mu.Unlock()
			if m.refuse == "*" || m.refuse == string(blob) {
				return artefacts.Built{}, fmt.Errorf("%w: by the driver", fault.ErrRefused)
			}
			return built(string(blob)), nil
		},
	})
	if err != nil {
		return "error " + err.Error()
	}
	defer lease.End()
	return fmt.Sprintf("%v by=%s", lease.Value(), o.Event)
}

func (b *bench) settle() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	if err := b.cache.Settle(ctx); err != nil {
		b.t.Error(err)
	}
}

func want(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (b *bench) stored(key string) string {
	blob, miss, err := b.store.Get(background, "test", key)
	if err != nil || !miss.None() {
		return fmt.Sprint(miss.Reason, err)
	}
	return string(blob.Payload)
}

// P6: memory, disk, build; a build is stored once.
func TestOrder(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 1, 0)
	want(t, "a", b.get("a", maker{value: "va"}), "va by=miss")
	want(t, "b", b.get("b", maker{value: "vb"}), "vb by=miss")
	b.settle()
	want(t, "a", b.get("a", maker{value: "x"}), "va by=persistent_hit")
	want(t, "a", b.get("a", maker{value: "x"}), "va by=hit")
	want(t, "b", b.get("b", maker{value: "x"}), "vb by=persistent_hit")
	want(t, "runs", b.runs["a"]+b.runs["b"], 2)
	want(t, "loads", b.loads["a"]+b.loads["b"], 2)
	u, err := b.store.Usage(background)
	want(t, "entries", fmt.Sprint(u.Entries, err), "2 <nil>")
}

// S6: a blob says what it took to build, from the disk and from memory.
func TestCost(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 1, 0)
	b.get("k", maker{value: "v"})
	if err := b.cache.Settle(background); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"disk", "memory"} {
		found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"})
		if found.Reason != "" || found.Cost != time.Second {
			t.Fatalf("from %s: %+v, want what the creator reported", from, found)
		}
		found.Claim.Loaded()
		for end := time.Now().Add(20 * time.Second); b.room.Offer(background) == nil && time.Now().Before(end); { // the tier takes it in its own time
			runtime.Gosched()
		}
	}
}

// P1, P12: off is a miss without a claim.
func TestOff(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 8, 0, func(c *blobstore.Config) { c.Capacity = limit.Of(0) })
	want(t, "get", b.get("k", maker{value: "v"}), "v by=miss")
	want(t, "find", b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: "k"}).Reason, fault.Disabled)
	want(t, "bad backend", b.tiers.Find(background, artefacts.Subject{Backend: "../x", Key: "k"}).Reason, fault.KeyRefused)
}

// P5: no fault fails a request, and writing is tried again within ten minutes.
func TestFaults(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 64, 0)
	for _, op := range []string{"write", "sync", "syncdir", "rename", "open", "mkdir"} {
		b.set(op, syscall.EIO, 0)
		want(t, op, b.get("k-"+op, maker{value: "v"}), "v by=miss")
		b.settle()
		b.set("", nil, 10*time.Minute)
		want(t, op, b.get("j-"+op, maker{value: "w"}), "w by=miss")
		b.settle()
		want(t, op, b.stored("j-"+op), "w")
	}
	if n := b.store.Stats().Reasons[fault.Degraded]; n < 6 {
		t.Errorf("degraded counted %d times", n)
	}
	bad, err := b.store.Verify(background, false)
	want(t, "verify", fmt.Sprint(bad, err), "[] <nil>")
	size, text, disk, err := b.store.Audit(background)
	want(t, "audit", fmt.Sprint(size == text, text == disk, err), "true true <nil>")
}

// P5: the directory goes while we run.
func TestDirectoryGoes(t *testing.T) {
	dir := t.TempDir() + "/d"
	b := open(t, dir, 1, 0)
	b.get("a", maker{value: "va"})
	b.settle()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	want(t, "b", b.get("b", maker{value: "vb"}), "vb by=miss")
	want(t, "a", b.get("a", maker{value: "va"}), "va by=miss")
	b.settle()
}

// P8: two caches of one host build once; whoever waits gets it from the disk.
func TestOneBuild(t *testing.T) {
	dir := t.TempDir() + "/d"
	a, b := open(t, dir, 8, 0), open(t, dir, 8, 0)
	buildsOnce(t, a, b, maker{value: "v"}, maker{value: "other"})
}

// buildsOnce has the first ask for k, and the second while that builds.
func buildsOnce(t *testing.T, a, b *bench, first, second maker) {
	t.Helper()
	first.gate = make(chan struct{})
	done := make(chan string, 2)
	go func() { done <- a.get("k", first) }()
	for a.has() == 0 {
		time.Sleep(time.Millisecond)
	}
	go func() { done <- b.get("k", second) }()
	select {
	case got := <-done:
		t.Fatalf("did not wait: %s", got)
	case <-time.After(50 * time.Millisecond):
	}
	close(first.gate)
	got := map[string]bool{<-done: true, <-done: true}
	want(t, "both", got, map[string]bool{first.value + " by=miss": true, first.value + " by=persistent_hit": true})
}

func (b *bench) has() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.runs["k"]
}

// K7: what a blob needs comes from who built it; from who does not say, all that
// is present.
func TestRequires(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 8, 0, func(c *blobstore.Config) {
		c.Identity = func(string) gpuexec.Identity {
			return gpuexec.Identity{Library: "1", Build: "b", ISA: []string{"avx2", "fma", "sse4_1"}}
		}
	})
	needs := map[string]string{}
	for key, requires := range map[string][]string{"some": {"fma", "avx2"}, "none": {}, "unknown": nil} {
		b.get(key, maker{value: "v", requires: requires})
	}
	b.settle()
	if err := b.store.List(background, func(i blobstore.Info) error {
		needs[i.Key] = fmt.Sprint(i.Requires)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want(t, "needs", needs, map[string]string{"none": "[]", "some": "[avx2 fma]", "unknown": "[avx2 fma sse4_1]"})
}

// P8: the tier may be used from many goroutines, and closed among them.
func TestHammer(t *testing.T) {
	b := open(t, t.TempDir()+"/d", 1, 1<<12)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 60 {
				key := fmt.Sprintf("k%d", (g+i)%7)
				found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: key})
				switch {
				case found.Reason == "" && string(found.Blob) != "v"+key:
					t.Errorf("%s: %q", key, found.Blob)
				case found.Reason == "" && i%9 == 0:
					for next := found.Claim.Refused(background); next.Reason == ""; {
						next = next.Claim.Refused(background)
					}
					found.Claim.Abandon()
				case found.Reason == "":
					found.Claim.Loaded()
				default:
					if err := found.Claim.Save(background, []byte("v"+key), time.Second, nil); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for range 40 {
			b.room.Shrink(background, 1, pressure.Spare)
		}
	})
	wg.Go(func() {
		for b.store.Stats().Hits < 20 {
			time.Sleep(time.Millisecond)
		}
		if err := b.tiers.Close(background); err != nil {
			t.Error(err)
		}
	})
	wg.Wait()
}
