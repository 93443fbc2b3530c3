package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/cgroup"
	"github.com/kiln-cache/kiln/sessioncache"
)

const kib = 1 << 10

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// within waits until the memory limit holds again.
func within(t *testing.T, r *kiln.Runtime, shrinks int64) kiln.MemoryStats {
	t.Helper()
	var m kiln.MemoryStats
	eventually(t, func() bool {
		m = r.Stats().Memory
		return m.Bytes <= m.Limit && m.Shrinks >= shrinks
	})
	return m
}

func artefact(t *testing.T, s *kiln.Session, dim int64, key string, size int64, cost time.Duration) {
	t.Helper()
	h := group(t, s, dim)
	defer h.Close()
	_, err := kiln.Get(ctx, h, key, kiln.Recipe[any]{Key: key, Make: func(context.Context) (kiln.Made[any], error) {
		return kiln.Made[any]{Bytes: size, Cost: cost}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func set(t *testing.T, s *kiln.Session, dim, size int64, cost time.Duration) {
	t.Helper()
	shape, err := kiln.ShapeOf([]int64{dim})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Cache().Set(ctx, shape, "w", sessioncache.Value{Bytes: size, Cost: cost}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
}

// Q5: over the limit the cheapest seconds a byte go first, over all rooms; names and
// their artefact together; constants when nothing else is left.
func TestMemoryLimit(t *testing.T) {
	log := new(lines)
	r := open(t, kiln.Config{
		Lookup: environment(map[string]string{"KILN_MEMORY_LIMIT": "1"}),
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	s := session(t, r)
	engine, err := r.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	var removed atomic.Int32 // constants, for this reason
	l, _, err := engine.Get(ctx, constants.Key{Backend: 1, ID: "weights"}, 200*kib, constants.Options{Removed: func(why constants.Removal) {
		if why == constants.Evicted {
			removed.Add(1)
		}
	}},
		func(context.Context) (constants.Value, error) { return constants.Value{Bytes: 200 * kib}, nil })
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	set(t, s, 1, 300*kib, 8*time.Second)
	set(t, s, 2, 200*kib, 1*time.Second)
	artefact(t, s, 3, "cheap", 100*kib, 100*time.Millisecond)
	artefact(t, s, 4, "dear", 200*kib, time.Minute)
	if m := r.Stats().Memory; m.Bytes != 1000*kib || m.Shrinks != 0 || m.Limit != 1024*kib {
		t.Fatalf("below the limit: %+v", m)
	}

	set(t, s, 5, 100*kib, time.Hour) // 76 KiB above: the cheapest is an artefact, held by a name
	if m := within(t, r, 1); m.Bytes != 1000*kib {
		t.Errorf("after 100 KiB more: %+v", m)
	}
	if r.Artefacts().Has("cheap") || !r.Artefacts().Has("dear") || s.Cache().Groups() != 4 {
		t.Errorf("cheap %v, dear %v, %d groups", r.Artefacts().Has("cheap"), r.Artefacts().Has("dear"), s.Cache().Groups())
	}
	eventually(t, func() bool { return log.count("memory: shrank") == 1 })
	if removed.Load() != 0 {
		t.Error("constants go last")
	}

	// What is in use stays, and before any constant all else goes.
	w := s.Intern("w")
	use := func(dim, size int64) kiln.Ref[any] {
		h := group(t, s, dim)
		t.Cleanup(h.Close)
		set(t, s, dim, size, 0)
		ref, ok := kiln.Refer[any](h, w)
		if !ok {
			t.Fatal("what was set is not there")
		}
		return ref
	}
	defer group(t, s, 5).Close()
	first := use(6, 700*kib)
	if m := within(t, r, 2); m.Bytes != 1000*kib || s.Cache().Groups() != 2 || r.Artefacts().Len() != 0 || removed.Load() != 0 {
		t.Errorf("after 700 KiB in use: %+v, %d groups, %d artefacts, %d constants removed", m, s.Cache().Groups(), r.Artefacts().Len(), removed.Load())
	}
	second := use(7, 200*kib)
	if m := within(t, r, 3); m.Bytes != 1000*kib || !first.Resident() || !second.Resident() {
		t.Errorf("after 200 KiB more in use: %+v, %v %v", m, first.Resident(), second.Resident())
	}
	eventually(t, func() bool { return removed.Load() == 1 })
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come about")
		}
	}
}

// G9: what was counted is given back to the last byte, leases and handles
// included, whatever becomes of values.
func TestMemoryIsGivenBack(t *testing.T) {
	r := open(t, kiln.Config{MemoryLimit: "1024", ArtefactBytes: kiln.LimitOf(64 * kib)})
	s := session(t, r)
	for n := range int64(200) {
		artefact(t, s, n%90, fmt.Sprint(n%37), n*100%9000, time.Duration(n))
		set(t, s, n%80, n*77%5000, 0)
	}
	h := group(t, s, 7)
	set(t, s, 7, 9, 0)
	if r.Stats().Memory.Bytes == 0 {
		t.Fatal("nothing is counted")
	}
	if err := s.Close(ctx); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if err := r.Artefacts().SetCapacity(kiln.LimitOf(0), kiln.Limit{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return r.Stats().Memory.Bytes == 0 })
}

func TestMemoryLimitSettings(t *testing.T) {
	if m := open(t, kiln.Config{}).Stats().Memory; m != (kiln.MemoryStats{}) {
		t.Errorf("off by default: %+v", m)
	}
	if m := open(t, kiln.Config{MemoryLimit: "off", Lookup: environment(map[string]string{"KILN_MEMORY_LIMIT": "5"})}).Stats().Memory; m.Limit != 0 {
		t.Errorf("the config wins: %+v", m)
	}
	if granted, known := cgroup.Memory(os.DirFS("/")); known {
		if m := open(t, kiln.Config{MemoryLimit: "auto"}).Stats().Memory; m.Limit != granted/10*8 {
			t.Errorf("auto is %d of %d", m.Limit, granted)
		}
	}
	for _, bad := range []kiln.Config{{MemoryLimit: "lots"}, {MemoryLimit: "0"}, {SessionBytes: kiln.LimitOf(-1)}} {
		bad.Lookup = environment(nil)
		if _, err := kiln.Open(bad); !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A capacity that is none is refused by the name of its field, all at once.
func TestBadConfigNamesTheField(t *testing.T) {
	bad := kiln.LimitOf(-1)
	for field, cfg := range map[string]kiln.Config{
		"ArtefactEntries": {ArtefactEntries: bad},
		"ArtefactBytes":   {ArtefactBytes: bad},
		"CPUConstantsMiB": {CPUConstantsMiB: bad},
		"GPUConstantsMiB": {GPUConstantsMiB: bad},
		"StoreBytes":      {StoreBytes: bad},
		"Capacity":        {Store: blobstore.Config{Capacity: bad}},
		"durability":      {Store: blobstore.Config{Durability: "most"}},
		"SessionBytes":    {SessionBytes: bad},
		"Workers":         {Workers: -1},
	} {
		cfg.Lookup = environment(nil)
		if _, err := kiln.Open(cfg); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, err := kiln.Open(kiln.Config{ArtefactBytes: bad, SessionBytes: bad, Lookup: environment(nil)})
	if err == nil || !strings.Contains(err.Error(), "ArtefactBytes") || !strings.Contains(err.Error(), "SessionBytes") {
		t.Errorf("two at once: %v", err)
	}
}

// Floors that the artefacts cannot give are refused, before the sessions' pool is
// asked for them, and leave nothing behind.
func TestFloorsAboveTheArtefacts(t *testing.T) {
	r := open(t, kiln.Config{ArtefactBytes: kiln.LimitOf(100), SessionBytes: kiln.LimitOf(200)})
	tenant := func(name string, floor int64, policy string) (*kiln.Session, error) {
		return r.Session(kiln.SessionConfig{Name: name, Floor: kiln.Floor{Bytes: floor}, Policy: policy})
	}
	a, err := tenant("a", 80, "")
	if err != nil {
		t.Fatal(err)
	}
	loud, err := tenant("loud", 0, "")
	if err != nil {
		t.Fatal(err)
	}
	set(t, loud, 1, 120, time.Second)
	if _, err := tenant("b", 80, ""); !errors.Is(err, kiln.ErrTooLarge) {
		t.Errorf("floors of 160 in 100 bytes of artefacts: %v", err)
	}
	if loud.Cache().Bytes() != 120 {
		t.Errorf("a refused floor left others %d bytes of 120", loud.Cache().Bytes())
	}
	if err := r.Artefacts().SetCapacity(kiln.Limit{}, kiln.LimitOf(79)); !errors.Is(err, kiln.ErrTooLarge) {
		t.Errorf("79 bytes under a floor of 80: %v", err)
	}
	if _, err := tenant("c", 20, "none such"); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("a session that cannot be opened: %v", err)
	}
	b, err := tenant("b", 20, "")
	if err != nil {
		t.Errorf("a failed open keeps its floor: %v", err)
	}
	if err := errors.Join(a.Close(ctx), b.Close(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := tenant("d", 100, ""); err != nil {
		t.Errorf("all floors given back: %v", err)
	}
}

// S5: a thrash warning reaches who gave the runtime a logger and the session none.
func TestSessionLogsToTheRuntime(t *testing.T) {
	log, own := new(lines), new(lines)
	r := open(t, kiln.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	for _, logger := range []*slog.Logger{nil, slog.New(slog.NewTextHandler(own, nil))} {
		s, err := r.Session(kiln.SessionConfig{Name: "small", Groups: kiln.LimitOf(4), Logger: logger})
		if err != nil {
			t.Fatal(err)
		}
		for i := range int64(200) {
			set(t, s, i%12, 1, 0)
		}
		if n := s.Stats().Thrash; n != 1 {
			t.Fatalf("%d warnings: the stream proves nothing", n)
		}
		if err := s.Close(ctx); err != nil { // its last turn has ended
			t.Fatal(err)
		}
	}
	if log.count("session: thrash") != 1 || own.count("session: thrash") != 1 {
		t.Errorf("%d warnings in the runtime's log, %d in the session's own, want 1 each", log.count("session: thrash"), own.count("session: thrash"))
	}
}

// Q4: a tenant's floor holds in the sessions' pool and among the artefacts.
func TestTenantFloor(t *testing.T) {
	r := open(t, kiln.Config{SessionBytes: kiln.LimitOf(1000), ArtefactEntries: kiln.LimitOf(20)})
	tenant := func(name string, floor int64) *kiln.Session {
		s, err := r.Session(kiln.SessionConfig{Name: name, Floor: kiln.Floor{Bytes: floor}, Groups: kiln.Unlimited})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	quiet, loud := tenant("quiet", 500), tenant("loud", 0)
	for n := range int64(10) {
		artefact(t, quiet, n, fmt.Sprint("q", n), 50, time.Second)
	}
	for n := range int64(200) {
		artefact(t, loud, n, fmt.Sprint("l", n), 50, time.Second)
		if b := r.Stats().SessionBytes; b > 1000 {
			t.Fatalf("sessions hold %d of 1000", b)
		}
	}
	if quiet.Cache().Bytes() != 500 || loud.Cache().Bytes() != 500 {
		t.Errorf("quiet has %d and loud %d, want 500 each", quiet.Cache().Bytes(), loud.Cache().Bytes())
	}
	for n := range 10 {
		if !r.Artefacts().Has(fmt.Sprint("q", n)) {
			t.Errorf("q%d went", n)
		}
	}
	if err := quiet.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for n := range int64(20) {
		artefact(t, loud, n, fmt.Sprint("m", n), 50, time.Second)
	}
	if r.Artefacts().Has("q1") {
		t.Error("the floor of a session that closed holds still")
	}
	cfg := kiln.SessionConfig{Floor: kiln.Floor{Bytes: 1}}
	if _, err := r.Session(cfg); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("a floor without a name: %v", err)
	}
}
