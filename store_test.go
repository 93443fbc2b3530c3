package kiln_test

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/fakedevice"
)

// persistent asks a runtime with a store for an artefact of that blob.
func persistent(t *testing.T, r *kiln.Runtime, key, blob string) artefacts.Outcome {
	t.Helper()
	made := func() artefacts.Built {
		return artefacts.Built{Value: 1, Bytes: 1, Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return []byte(blob), nil }}
	}
	l, o, err := r.Artefacts().Get(ctx, artefacts.Request{
		Key: key, Backend: "test",
		Create: func(context.Context) (artefacts.Built, error) { return made(), nil },
		Load:   func(context.Context, []byte) (artefacts.Built, error) { return made(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if err := r.Artefacts().Settle(ctx); err != nil {
		t.Fatal(err)
	}
	return o
}

func driver(version string) func(string) gpuexec.Identity {
	return func(string) gpuexec.Identity {
		return gpuexec.Identity{Library: "1", Build: "b", Driver: version}
	}
}

// aborting is a backend whose driver can end the process.
type aborting struct{ *fakedevice.Backend }

func (aborting) Name() string { return "aborting" }
func (aborting) Aborts() bool { return true }

// P11: while a driver that can abort has a blob, there is a mark on the disk; the
// backend itself says that it can.
func TestMarksOfABackendThatAborts(t *testing.T) {
	gpuexec.Register(aborting{&fakedevice.Backend{}})
	dir := t.TempDir()
	for _, backend := range []string{"aborting", "other"} {
		marks := -1
		for range 2 {
			r, err := kiln.Open(kiln.Config{Store: blobstore.Config{Dir: dir, Identity: driver("1")}})
			if err != nil {
				t.Fatal(err)
			}
			made := artefacts.Built{Value: 1, Bytes: 1, Cost: time.Second, Blob: func(context.Context) ([]byte, error) { return []byte("code"), nil }}
			l, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: "k", Backend: backend,
				Create: func(context.Context) (artefacts.Built, error) { return made, nil },
				Load: func(context.Context, []byte) (artefacts.Built, error) {
					entries, _ := os.ReadDir(filepath.Join(dir, "mark"))
					marks = len(entries)
					return made, nil
				}})
			if err != nil {
				t.Fatal(err)
			}
			l.End()
			if err := r.Close(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if marked := marks > 0; marks < 0 || marked != (backend == "aborting") {
			t.Errorf("%s: %d marks while its driver loads", backend, marks)
		}
	}
}

// P14: the environment names bases, which a program's own replace.
func TestBasesOfTheEnvironment(t *testing.T) {
	base := filepath.Join(t.TempDir(), "base")
	persistent(t, open(t, kiln.Config{Store: blobstore.Config{Dir: base, Identity: driver("1")}}), "k", "code")
	vars := environment(map[string]string{"KILN_STORE_BASES": base})
	ask := func(bases []string) artefacts.Event {
		c := blobstore.Config{Dir: filepath.Join(t.TempDir(), "store"), Identity: driver("1"), Bases: bases}
		return persistent(t, open(t, kiln.Config{Store: c, Lookup: vars}), "k", "code").Event
	}
	if e := ask(nil); e != artefacts.PersistentHit {
		t.Errorf("with the environment's base: %v", e)
	}
	if e := ask([]string{}); e != artefacts.Miss {
		t.Errorf("with none: %v", e)
	}
}

// P18: how many artefacts are still being stored is a figure of the runtime.
func TestPendingStores(t *testing.T) {
	r := open(t, kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store")})
	release := make(chan struct{})
	recipe := kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
		return kiln.Made[int]{Value: 1, Blob: func(context.Context) ([]byte, error) { <-release; return []byte("b"), nil }}, nil
	}, Load: func(context.Context, []byte) (kiln.Made[int], error) { return kiln.Made[int]{}, nil }}
	must(kiln.Get(ctx, group(t, session(t, r), 1), "n", recipe))
	if n := r.Stats().PendingStores; n != 1 {
		t.Errorf("%d stores are pending: want the one that waits for its blob", n)
	}
	close(release)
	if err := r.Artefacts().Settle(ctx); err != nil {
		t.Fatal(err)
	}
	if n := r.Stats().PendingStores; n != 0 {
		t.Errorf("%d stores are pending after all have settled", n)
	}
}

// R2: a miss though an entry of the key exists says so once, with what differs;
// one where there is none says nothing.
func TestAvoidableMissIsLogged(t *testing.T) {
	dir, log := filepath.Join(t.TempDir(), "store"), new(lines)
	start := func(version string) *kiln.Runtime {
		return open(t, kiln.Config{Store: blobstore.Config{Dir: dir, Identity: driver(version)}, Logger: slog.New(slog.NewTextHandler(log, nil))})
	}
	const line = "a miss that was avoidable"
	old := start("1")
	persistent(t, old, "k", "code")
	if o := persistent(t, start("1"), "k", "code"); o.Event != artefacts.PersistentHit || log.count(line) != 0 {
		t.Fatalf("unchanged: %+v, log %q", o, log.b.String())
	}
	o := persistent(t, start("2"), "k", "code")
	if o.Event != artefacts.Miss || o.Reason != fault.Outdated || o.Field != "driver" {
		t.Errorf("another driver: %+v", o)
	}
	if log.count(line) != 1 || log.count("key=k reason=outdated field=driver differs=[driver]") != 1 {
		t.Errorf("it was logged as %q", log.b.String())
	}
	if o := persistent(t, start("2"), "k", "code"); o.Event != artefacts.PersistentHit || log.count(line) != 1 {
		t.Errorf("stored beside the old one: %+v, log %q", o, log.b.String())
	}
}

// The blobs that the store keeps in memory count to the memory limit, and go
// before anything that would have to be made again.
func TestMemoryLimitTakesBlobs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	persistent(t, open(t, kiln.Config{Store: blobstore.Config{Dir: dir, Identity: driver("1")}}), "k", string(make([]byte, 600*kib)))
	r := open(t, kiln.Config{Store: blobstore.Config{Dir: dir, Identity: driver("1")}, MemoryLimit: "1"})
	persistent(t, r, "k", "")
	eventually(t, func() bool { return r.Stats().Memory.Bytes > 600*kib })
	s := session(t, r)
	set(t, s, 1, 900*kib, 0) // of no cost, yet nobody could read it back
	if m := within(t, r, 1); m.Bytes != 900*kib+1 || s.Cache().Groups() != 1 {
		t.Errorf("above the limit: %+v, %d groups", m, s.Cache().Groups())
	}
}

// P10, P15: the whole config of a store is the program's to say, and what it
// leaves out is the environment's.
func TestStoreConfig(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "store")
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	trusting := func(id string) string {
		path := filepath.Join(dir, id+".json")
		list, err := json.Marshal(map[string]any{"keys": []any{map[string]any{"id": id, "public": []byte(public)}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, list, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	vars := environment(map[string]string{"KILN_STORE_DIR": at, "KILN_STORE_CAPACITY": "3"})
	start := func(c blobstore.Config) *kiln.Runtime {
		c.Identity = driver("1")
		return open(t, kiln.Config{Store: c, StoreRequired: !c.ReadOnly, Lookup: vars})
	}
	r := start(blobstore.Config{Durability: blobstore.None, Capacity: kiln.LimitOf(1<<20 + 1), Signer: &blobstore.Signer{ID: "build farm", Key: private}})
	persistent(t, r, "k", "code")
	if dir, capacity := row(r, "KILN_STORE_DIR"), row(r, "KILN_STORE_CAPACITY"); dir != at || capacity != "1048577B" {
		t.Errorf("settings: %s, %s, want %s and 1048577B", dir, capacity, at)
	}
	if m := r.Store().Stats(); m.Stores != 1 {
		t.Errorf("%d stores, want 1", m.Stores)
	}
	if s := open(t, kiln.Config{Lookup: environment(nil)}).Store(); s != nil {
		t.Errorf("no store was asked for: %v", s)
	}
	if o := persistent(t, start(blobstore.Config{Trust: trusting("build farm")}), "k", "code"); o.Event != artefacts.PersistentHit {
		t.Errorf("a trusted signer: %+v", o)
	}
	other := start(blobstore.Config{Trust: trusting("somebody else"), ReadOnly: true})
	if o := persistent(t, other, "k", "code"); o.Event != artefacts.Miss || o.Reason != fault.UntrustedSigner {
		t.Errorf("another signer: %+v", o)
	}
	if capacity := row(other, "KILN_STORE_CAPACITY"); capacity != "3" {
		t.Errorf("capacity %s MiB, want that of the environment", capacity)
	}
}

// F5, P8: a creator whose own key is asked for below it through another runtime over the
// same directory waits for no claim of its own: the other one builds as well, or the circle
// is told.
func TestCircleThroughTheStore(t *testing.T) {
	one := func(key string, make func(context.Context) (int, error)) kiln.Recipe[int] {
		return kiln.Recipe[int]{Key: key,
			Make: func(ctx context.Context) (kiln.Made[int], error) {
				v, err := make(ctx)
				return kiln.Made[int]{Value: v, Blob: func(context.Context) ([]byte, error) { return []byte("7"), nil }}, err
			},
			Load: func(context.Context, []byte) (kiln.Made[int], error) { return kiln.Made[int]{Value: 7}, nil }}
	}
	seven := one("x", func(context.Context) (int, error) { return 7, nil })
	for what, below := range map[string]func(context.Context, *kiln.Session, *kiln.Group) (int, error){
		"at once": func(ctx context.Context, _ *kiln.Session, g *kiln.Group) (int, error) {
			return kiln.Get(ctx, g, "x", seven)
		},
		"through another key": func(ctx context.Context, _ *kiln.Session, g *kiln.Group) (int, error) {
			return kiln.Get(ctx, g, "y", one("y", func(ctx context.Context) (int, error) { return kiln.Get(ctx, g, "x", seven) }))
		},
		"that another has asked for": func(ctx context.Context, s *kiln.Session, g *kiln.Group) (int, error) {
			go kiln.Get(context.Background(), g, "x", seven)
			for s.Stats().Running == 0 {
				time.Sleep(time.Millisecond)
			}
			return kiln.Get(ctx, g, "x", seven)
		},
	} {
		cfg := kiln.Config{StoreDir: t.TempDir()}
		other := session(t, open(t, cfg))
		above, beside := group(t, session(t, open(t, cfg)), 1), group(t, other, 1)
		waiting, stop := context.WithTimeout(ctx, 10*time.Second) // no shorter than the lease of a claim
		v, err := kiln.Get(waiting, above, "x", one("x", func(ctx context.Context) (int, error) { return below(ctx, other, beside) }))
		if stop(); err != nil && !errors.Is(err, kiln.ErrCycle) || err == nil && v != 7 {
			t.Errorf("%s: %d, %v", what, v, err)
		}
		above.Close()
		beside.Close()
	}
}
