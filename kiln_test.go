package kiln_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/sessioncache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var ctx = context.Background()

// environment is a lookup of these variables alone.
func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func open(t *testing.T, cfg kiln.Config) *kiln.Runtime {
	t.Helper()
	if cfg.Lookup == nil {
		cfg.Lookup = environment(nil)
	}
	r, err := kiln.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r
}

func session(t *testing.T, r *kiln.Runtime) *kiln.Session {
	t.Helper()
	s, err := r.Session(kiln.SessionConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func group(t *testing.T, s *kiln.Session, dims ...int64) *kiln.Group {
	t.Helper()
	g, err := s.Group(ctx, dims)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// of is the recipe of a value that is there already.
func of[T any](key string, v T) kiln.Recipe[T] {
	return kiln.Recipe[T]{Key: key, Make: func(context.Context) (kiln.Made[T], error) {
		return kiln.Made[T]{Value: v, Bytes: 1}, nil
	}}
}

// G11: the 224 names of a BERT-base at 128 tokens cost 18 artefacts, and as many
// sessions as there may be cost no more.
func TestNamesShareArtefacts(t *testing.T) {
	text, ok := data.Model("bert_base_uncased")
	if !ok {
		t.Fatalf("no such model among %v", data.Models())
	}
	bound := operations(t, text)
	var made, freed atomic.Int64
	var told []kiln.Event
	r := open(t, kiln.Config{Listen: func(e kiln.Event) { told = append(told, e) }})
	for n := range 3 {
		s := session(t, r)
		h := group(t, s, 1, 128)
		for _, op := range bound {
			recipe := kiln.Recipe[string]{Key: op.identity(), Make: func(context.Context) (kiln.Made[string], error) {
				made.Add(1)
				return kiln.Made[string]{Value: op.identity(), Bytes: 1, Free: func() { freed.Add(1) }}, nil
			}}
			for i, kind := range []kiln.Kind{kiln.Miss, kiln.Hit} {
				v, err := kiln.Get(ctx, h, op.Name, recipe)
				if err != nil || v != op.identity() {
					t.Fatalf("%s: %q, %v", op.Name, v, err)
				}
				if e := told[len(told)-1]; e.Kind != kind || i == 0 && n > 0 && e.Artefact != kiln.Hit {
					t.Errorf("session %d, %s: %+v", n, op.Name, e)
				}
			}
		}
		h.Close()
		if s.Cache().Len() != 224 || made.Load() != 18 || r.Artefacts().Len() != 18 {
			t.Errorf("session %d: %d names, %d made, %d artefacts, want 224, 18, 18", n, s.Cache().Len(), made.Load(), r.Artefacts().Len())
		}
	}
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if freed.Load() != 18 {
		t.Errorf("%d freed at Close, want 18", freed.Load())
	}
}

// C9, T10: the environment is read once, refusals are kept apart, and what the
// program says wins.
func TestProgramWinsOverEnvironment(t *testing.T) {
	vars := map[string]string{
		"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "7", "DNNL_PRIMITIVE_CACHE_CAPACITY": "9",
		"ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY": "cpu:5;gpu:6:cost;tpu:1",
		"KILN_WORKERS": "3",
	}
	r := open(t, kiln.Config{Lookup: environment(vars), GPUConstantsMiB: kiln.LimitOf(60)})
	for kind, want := range map[constants.Kind]string{constants.CPU: "5", constants.GPU: "60"} {
		if got := r.Constants().Capacity(kind).String(); got != want {
			t.Errorf("constants on %s: %s, want %s", kind, got, want)
		}
	}
	if got := row(r, "ONEDNN_PRIMITIVE_CACHE_CAPACITY"); got != "7" {
		t.Errorf("artefacts: %s, want 7", got)
	}
	if len(r.Refusals()) != 1 {
		t.Errorf("refused: %v, want the entry for tpu alone", r.Refusals())
	}
	vars["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = "8" // read once
	if got := row(r, "ONEDNN_PRIMITIVE_CACHE_CAPACITY"); got != "7" {
		t.Errorf("artefacts: %s after the environment changed", got)
	}
	r = open(t, kiln.Config{Lookup: environment(vars), ArtefactEntries: kiln.LimitOf(2), CPUConstantsMiB: kiln.Unlimited})
	for i := range 5 {
		lease, _, err := r.Artefacts().Get(ctx, artefacts.Request{Key: fmt.Sprint(i), Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: i, Bytes: 1}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		lease.End()
	}
	if n := r.Artefacts().Len(); n != 2 {
		t.Errorf("%d artefacts, the program said 2", n)
	}
	if got := r.Constants().Capacity(constants.CPU).String(); got != "unlimited" {
		t.Errorf("constants on cpu: %s, the program said unlimited", got)
	}
}

// T4, T10: the policy that the environment gives a kind stands, also where the program says
// the kind's capacity.
func TestPolicyOfConstants(t *testing.T) {
	vars := map[string]string{"ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY": "cpu:9:cost;gpu:1"}
	r := open(t, kiln.Config{Lookup: environment(vars), CPUConstantsMiB: kiln.LimitOf(1)})
	for kind, evicts := range map[constants.Kind]bool{constants.CPU: true, constants.GPU: false} {
		e := must(r.Constants().Engine(kind, 0, ""))
		get := func(id string, cost time.Duration) {
			l, _, err := e.Get(ctx, constants.Key{ID: id}, 1<<20, constants.Options{Cost: cost}, func(context.Context) (constants.Value, error) {
				return constants.Value{Any: id, Bytes: 1 << 20}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			l.End()
		}
		get("cheap", time.Second)
		get("dear", time.Hour)
		l, dear := e.Lookup(constants.Key{ID: "dear"})
		if dear {
			l.End()
		}
		if dear != evicts {
			t.Errorf("%s: the dear one is kept: %v, want %v", kind, dear, evicts)
		}
	}
}

func row(r *kiln.Runtime, name string) string {
	rows := r.Settings()
	for i := range rows {
		if rows[i].Name == name {
			return rows[i].Value
		}
	}
	return "absent"
}

// An Open that fails leaves nothing (see TestMain) and says what is wrong.
func TestFailedOpen(t *testing.T) {
	for name, cfg := range map[string]kiln.Config{
		"artefacts":  {ArtefactEntries: kiln.LimitOf(-1)},
		"bytes":      {ArtefactBytes: kiln.LimitOf(-1)},
		"constants":  {CPUConstantsMiB: kiln.LimitOf(-1)},
		"workers":    {Workers: -1},
		"a crowd":    {Workers: 4097},
		"no store":   {StoreRequired: true, MemoryLimit: "1024"},
		"read only":  {StoreRequired: true, StoreDir: "x", Store: blobstore.Config{ReadOnly: true}},
		"partly off": {StoreRequired: true, StoreDir: "x", Store: blobstore.Config{Off: []string{"cpu"}}},
		"no count":   {MemoryLimit: "1MiB", Artefacts: open(t, kiln.Config{}).Artefacts()},
		"two ways":   {StoreRequired: true, Artefacts: open(t, kiln.Config{}).Artefacts()},
	} {
		cfg.Lookup = environment(nil)
		if r, err := kiln.Open(cfg); r != nil || !errors.Is(err, kiln.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

// F8: what is freed at Close still has its device: sessions go before artefacts,
// artefacts before constants, constants before executors.
func TestOrderOfClose(t *testing.T) {
	fake := &fakedevice.Backend{}
	r := open(t, kiln.Config{})
	exec, err := r.Executor(ctx, fake, 0)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	note := func(what string) func() {
		return func() {
			mu.Lock()
			defer mu.Unlock()
			if fake.Leaked() == 0 {
				what += " without a device"
			}
			order = append(order, what)
		}
	}
	s := session(t, r)
	h := group(t, s, 1)
	if err := s.Cache().Set(ctx, h.Shape(), "own", sessioncache.Value{Any: 1, Free: note("session")}, sessioncache.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kiln.Get(ctx, h, "shared", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
		return kiln.Made[int]{Value: 1, Bytes: 1, Free: note("artefact")}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	h.Close()
	engine, err := r.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		t.Fatal(err)
	}
	l, _, err := engine.Get(ctx, constants.Key{ID: "w"}, 1, constants.Options{}, func(context.Context) (constants.Value, error) {
		return constants.Value{Any: 1, Bytes: 1, Free: note("constant")}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	var wg sync.WaitGroup
	for range 4 { // idempotent, also at once
		wg.Go(func() {
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if want := []string{"session", "artefact", "constant"}; !slices.Equal(order, want) {
		t.Errorf("freed in order %v, want %v", order, want)
	}
	if fake.Leaked() != 0 {
		t.Error("the device is open after Close")
	}
	_, opened := r.Session(kiln.SessionConfig{})
	_, again := r.Executor(ctx, fake, 0)
	for what, err := range map[string]error{"session": opened, "executor": again, "executor's own": exec.Ready(ctx)} {
		if !errors.Is(err, kiln.ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
}

// E1: an executor is opened once for all who ask; a failure is not kept.
func TestExecutorIsShared(t *testing.T) {
	var fails atomic.Bool
	var opens atomic.Int64
	fails.Store(true)
	fake := &fakedevice.Backend{OnOpen: func() error {
		opens.Add(1)
		if fails.Load() {
			return kiln.ErrUnavailable
		}
		return nil
	}}
	r := open(t, kiln.Config{})
	if _, err := r.Executor(ctx, fake, 0); !errors.Is(err, kiln.ErrUnavailable) {
		t.Fatalf("got %v", err)
	}
	fails.Store(false)
	opens.Store(0)
	first, err := r.Executor(ctx, fake, 0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if e, err := r.Executor(ctx, fake, 0); e != first || err != nil {
				t.Errorf("another executor, %v", err)
			}
		})
	}
	wg.Wait()
	if opens.Load() != 1 {
		t.Errorf("opened %d times", opens.Load())
	}
	if _, err := r.Executor(ctx, fake, 1); !errors.Is(err, kiln.ErrNotFound) {
		t.Errorf("device 1: %v", err)
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	if e, err := r.Executor(ended, fake, 0); e != first || err != nil {
		t.Errorf("one that is open, and a context that has ended: %v", err)
	}
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	if _, err := r.Executor(ctx, fake, 0); !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("once the runtime is closed: %v", err)
	}
}

// F2: a creator's error reaches the caller as it is, and the next call tries again.
func TestMakeFails(t *testing.T) {
	r := open(t, kiln.Config{})
	s := session(t, r)
	h := group(t, s, 3)
	defer h.Close()
	mine := errors.New("mine")
	for i := range 2 {
		_, err := kiln.Get(ctx, h, "n", kiln.Recipe[int]{Key: "k", Make: func(context.Context) (kiln.Made[int], error) {
			if i == 0 {
				return kiln.Made[int]{}, mine
			}
			panic(mine)
		}})
		if !errors.Is(err, mine) {
			t.Errorf("got %v", err)
		}
	}
	if s.Cache().Len() != 0 || r.Artefacts().Len() != 0 {
		t.Errorf("%d names, %d artefacts are left of failures", s.Cache().Len(), r.Artefacts().Len())
	}
}

// uncomparable is a backend that is no pointer and cannot be the key of a map.
type uncomparable struct {
	*fakedevice.Backend
	_ []int
}

// unequal is a backend that does not equal itself where its number is a NaN.
type unequal struct {
	*fakedevice.Backend
	number float64
}

// E1, F3, F4: whoever opens an executor may leave, a backend may panic, and
// neither holds up the others or Close.
func TestExecutorOpening(t *testing.T) {
	inOpen, goOn := make(chan struct{}), make(chan struct{})
	slow := &fakedevice.Backend{OnOpen: func() error {
		close(inOpen)
		<-goOn
		return nil
	}}
	r := open(t, kiln.Config{})
	leaving, leave := context.WithCancel(ctx)
	left := make(chan error)
	go func() {
		_, err := r.Executor(leaving, slow, 0)
		left <- err
	}()
	<-inOpen
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	close(goOn)
	if _, err := r.Executor(ctx, slow, 0); err != nil {
		t.Errorf("who came next got %v", err)
	}

	var panics atomic.Bool
	panics.Store(true)
	broken := &fakedevice.Backend{OnOpen: func() error {
		if panics.Load() {
			panic("driver")
		}
		return nil
	}}
	var p *kiln.PanicError
	if _, err := r.Executor(ctx, broken, 0); !errors.As(err, &p) || p.Value != "driver" {
		t.Errorf("a panic in Open: %v", err)
	}
	panics.Store(false)
	if _, err := r.Executor(ctx, broken, 0); err != nil {
		t.Errorf("after the panic: %v", err)
	}
	if _, err := r.Executor(ctx, uncomparable{Backend: broken}, 0); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("a backend that cannot be compared: %v", err)
	}
	if _, err := r.Executor(ctx, unequal{broken, math.NaN()}, 0); !errors.Is(err, kiln.ErrInvalid) {
		t.Errorf("a backend that does not equal itself: %v", err)
	}
}

// F8: executors that fail to open beside Close.
func TestExecutorsFailBesideClose(t *testing.T) {
	fails := func() error { return kiln.ErrUnavailable }
	for range 20 {
		r := open(t, kiln.Config{})
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := r.Executor(ctx, &fakedevice.Backend{OnOpen: fails}, 0); !errors.Is(err, kiln.ErrUnavailable) && !errors.Is(err, kiln.ErrClosed) {
					t.Error(err)
				}
			})
		}
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
