package kiln_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// G2, S1, S4: a zero SessionConfig follows the environment; a field that is given
// wins over it, also where it says what is the default elsewhere.
func TestSessionConfigFollowsTheEnvironment(t *testing.T) {
	r := open(t, kiln.Config{Lookup: environment(map[string]string{
		"KILN_SESSION_GROUPS": "3", "KILN_SESSION_POLICY": "fifo", "KILN_BUCKET": "multiple:8",
	})})
	for _, c := range []struct {
		what     string
		cfg      kiln.SessionConfig
		groups   int64
		first    bool // the group used again last is the one that goes: fifo
		compiled int64
	}{
		{"zero", kiln.SessionConfig{}, 3, true, 8},
		{"given", kiln.SessionConfig{Groups: kiln.LimitOf(4), Policy: "lru", Bucket: must(kiln.ParseBucketing("exact"))}, 4, false, 5},
	} {
		s := must(r.Session(c.cfg))
		if g := group(t, s, 5); g.Shape() != must(kiln.ShapeOf([]int64{c.compiled})) {
			t.Errorf("%s: [[5]] is compiled as %v", c.what, g.Shape())
		} else {
			g.Close()
		}
		use := func(dim int64) {
			g := group(t, s, dim)
			defer g.Close()
			must(kiln.Get(ctx, g, "n", of("k", 1)))
		}
		for dim := range c.groups {
			use(8 * (dim + 1))
		}
		use(8) // again: lru keeps it, fifo does not
		use(8 * (c.groups + 1))
		if n := s.Cache().Groups(); n != c.groups {
			t.Errorf("%s: %d groups, want %d", c.what, n, c.groups)
		}
		if has := s.Cache().Has(must(kiln.ShapeOf([]int64{8}))); has == c.first {
			t.Errorf("%s: the first group stayed: %v", c.what, has)
		}
	}
	log := new(lines)
	r = open(t, kiln.Config{Lookup: environment(map[string]string{"KILN_BUCKET": "multiple:99999999999999999999"}), Logger: slog.New(slog.NewTextHandler(log, nil))})
	for range 2 {
		if g := group(t, session(t, r), 5); g.Shape() != must(kiln.ShapeOf([]int64{5})) {
			t.Errorf("a refused bucketing is followed: %v", g.Shape())
		}
	}
	if log.count("KILN_BUCKET") != 1 {
		t.Errorf("the refusal is logged %d times", log.count("KILN_BUCKET"))
	}
}

// What is wrong with a session's config is ErrInvalid, and a runtime that was
// closed opens none.
func TestSessionConfigIsChecked(t *testing.T) {
	r := open(t, kiln.Config{})
	for _, c := range []struct {
		cfg   kiln.SessionConfig
		names string
	}{
		{kiln.SessionConfig{Groups: kiln.LimitOf(-1)}, "Groups: "}, {kiln.SessionConfig{Bytes: kiln.LimitOf(-1)}, "Bytes: "},
		{kiln.SessionConfig{Policy: "best"}, `"best"`}, {kiln.SessionConfig{Keep: "some"}, `"some"`},
		{kiln.SessionConfig{Floor: kiln.Floor{Bytes: 1}}, "loor"}, {kiln.SessionConfig{Name: "n", Floor: kiln.Floor{Bytes: -1}}, "loor"},
	} {
		if _, err := r.Session(c.cfg); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), c.names) {
			t.Errorf("%+v: %v, want one that says %q", c.cfg, err, c.names)
		}
	}
	if err := r.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Session(kiln.SessionConfig{}); !errors.Is(err, kiln.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// P1, P12: a directory alone makes artefacts of a compiler of one's own outlive
// the process; the program's own build is what they must fit. Without a Load, or
// without a Blob, nothing is stored.
func TestStoreDirAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	for i, want := range []kiln.Kind{kiln.Miss, kiln.PersistentHit} {
		var told []kiln.Event
		r := open(t, kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { told = append(told, e) }})
		g := group(t, session(t, r), 1)
		must(kiln.Get(ctx, g, "n", stored("k", 7)))
		must(kiln.Get(ctx, g, "no load", of("other", 7)))
		unblobbed := stored("third", 7)
		unblobbed.Make = of("third", 7).Make
		must(kiln.Get(ctx, g, "no blob", unblobbed))
		if told[0].Artefact != want || told[1].Artefact != kiln.Miss || told[2].Artefact != kiln.Miss {
			t.Errorf("run %d: %+v", i, told)
		}
		g.Close()
		if err := r.Artefacts().Settle(ctx); err != nil {
			t.Fatal(err)
		}
		if n := r.Store().Stats().Stores; n != int64(1-i) {
			t.Errorf("run %d stored %d", i, n)
		}
		var backends []string
		if err := r.Store().List(ctx, func(i blobstore.Info) error {
			backends = append(backends, i.Backend)
			return nil
		}); err != nil || !slices.Equal(backends, []string{kiln.DefaultBackend}) {
			t.Errorf("entries of %q, %v", backends, err)
		}
		if err := r.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// C9: StoreDir and StoreBytes win over the rest of the store's config and over the
// environment.
func TestStoreFieldsWin(t *testing.T) {
	dir := t.TempDir()
	vars := environment(map[string]string{"KILN_STORE_DIR": filepath.Join(dir, "env"), "KILN_STORE_CAPACITY": "3"})
	for want, cfg := range map[string]kiln.Config{
		"env 3":  {},
		"room 2": {Store: blobstore.Config{Dir: filepath.Join(dir, "room"), Capacity: kiln.LimitOf(2 << 20)}},
		"door 1": {Store: blobstore.Config{Dir: filepath.Join(dir, "room"), Capacity: kiln.LimitOf(2 << 20)}, StoreDir: filepath.Join(dir, "door"), StoreBytes: kiln.LimitOf(1 << 20)},
		"off 0":  {StoreDir: filepath.Join(dir, "off"), StoreBytes: kiln.LimitOf(0)},
	} {
		cfg.Lookup = vars
		r := open(t, cfg)
		if got := filepath.Base(row(r, "KILN_STORE_DIR")) + " " + row(r, "KILN_STORE_CAPACITY"); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
		if is := r.Store() != nil; is != (want != "off 0") {
			t.Errorf("%s: a store: %v", want, is)
		}
	}
}

// P17: an artefact that could be stored, of a backend whose build nobody knows,
// answers disabled with the field and is logged once; where the store is required
// it is an error, before anything was made.
func TestNotStorable(t *testing.T) {
	log := new(lines)
	var told []kiln.Event
	nameless := func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1"} }
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), Store: blobstore.Config{Identity: nameless},
		Listen: func(e kiln.Event) { told = append(told, e) }, Logger: slog.New(slog.NewTextHandler(log, nil))}
	g := group(t, session(t, open(t, cfg)), 1)
	defer g.Close()
	for i, key := range []string{"a", "b"} {
		if v, err := kiln.Get(ctx, g, key, stored(key, 7)); v != 7 || err != nil {
			t.Errorf("%s: %d, %v", key, v, err)
		}
		if e := told[i]; e.Artefact != kiln.Miss || e.Reason != fault.Disabled || e.Field != "build" {
			t.Errorf("%s: %+v", key, e)
		}
	}
	must(kiln.Get(ctx, g, "c", of("c", 1))) // it could not be stored anyhow
	if told[2].Reason != fault.Absent {
		t.Errorf("without Load: %+v", told[2])
	}
	if log.count("nothing of this backend is stored") != 1 || log.count("backend=go reason=disabled field=build") != 1 {
		t.Errorf("it is logged as\n%s", log.b.String())
	}

	cfg.StoreRequired = true
	h := group(t, session(t, open(t, cfg)), 1)
	defer h.Close()
	var made atomic.Int32
	recipe := stored("a", 7)
	recipe.Make = func(context.Context) (kiln.Made[int], error) {
		made.Add(1)
		return kiln.Made[int]{}, nil
	}
	var typed *kiln.Error
	if _, err := kiln.Get(ctx, h, "a", recipe); !errors.As(err, &typed) || typed.Reason != fault.Disabled || typed.Field != "build" || typed.Backend != kiln.DefaultBackend || made.Load() != 0 {
		t.Errorf("required: %v after %d were made", err, made.Load())
	}
	must(kiln.Get(ctx, h, "c", of("c", 1))) // nobody asked for that to be stored
}

// P12, P17: neither is one of a backend whose library nobody knows.
func TestNotStorableOfNoLibrary(t *testing.T) {
	log := new(lines)
	nameless := func(string) gpuexec.Identity { return gpuexec.Identity{Build: "b"} }
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), Store: blobstore.Config{Identity: nameless}, Logger: slog.New(slog.NewTextHandler(log, nil))}
	g := group(t, session(t, open(t, cfg)), 1)
	defer g.Close()
	must(kiln.Get(ctx, g, "a", stored("a", 7)))
	if log.count("backend=go reason=disabled field=library") != 1 {
		t.Errorf("it is logged as\n%s", log.b.String())
	}
	cfg.StoreRequired = true
	h := group(t, session(t, open(t, cfg)), 1)
	defer h.Close()
	_, err := kiln.Get(ctx, h, "a", stored("a", 7))
	if reason, field := fault.ReasonOf(err); !errors.Is(err, kiln.ErrRefused) || reason != fault.Disabled || field != "library" {
		t.Errorf("required: %v", err)
	}
}

// P5: without a Logger the process's default one says that the store cannot be opened,
// and no more than warnings and errors.
func TestDefaultLogger(t *testing.T) {
	log, before := new(lines), slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(log, nil)))
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := open(t, kiln.Config{StoreDir: file})
	must(r.Warm(ctx, strings.NewReader(`{"kiln_manifest":2}`), func(context.Context, *kiln.Group, kiln.Entry) error { return nil })) // which it logs for information
	if log.count("level=INFO") != 0 || log.count("going on without a store") != 1 || log.count("level=ERROR") != 1 {
		t.Errorf("it is logged as\n%s", log.b.String())
	}
	open(t, kiln.Config{StoreDir: file, Logger: slog.New(slog.DiscardHandler)})
	if log.count("going on without a store") != 1 {
		t.Errorf("a silent one logs\n%s", log.b.String())
	}
}

// P17: an artefact of a backend whose name no store can take is not stored, which is
// told as that of an unknown identity is.
func TestBackendThatNoStoreTakes(t *testing.T) {
	log := new(lines)
	var told []kiln.Event
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), Listen: func(e kiln.Event) { told = append(told, e) }, Logger: slog.New(slog.NewTextHandler(log, nil))}
	g := group(t, session(t, open(t, cfg)), 1)
	defer g.Close()
	for _, key := range []string{"a", "b"} {
		recipe := stored(key, 7)
		recipe.Backend = "my/jit"
		if v, err := kiln.Get(ctx, g, key, recipe); v != 7 || err != nil {
			t.Errorf("%s: %d, %v", key, v, err)
		}
		if e := told[len(told)-1]; e.Artefact != kiln.Miss || e.Reason != fault.Disabled || e.Field != "backend" {
			t.Errorf("%s: %+v", key, e)
		}
	}
	if text := log.b.String(); log.count("backend=my/jit") != 1 || log.count("level=WARN") != 1 || !strings.Contains(text, "want letters, digits") {
		t.Errorf("it is logged as\n%s", text)
	}

	cfg.StoreRequired = true
	cfg.Store.Identity = func(string) gpuexec.Identity { return gpuexec.Identity{} } // the name comes first
	h := group(t, session(t, open(t, cfg)), 1)
	defer h.Close()
	recipe := stored("a", 7)
	recipe.Backend = "my/jit"
	var typed *kiln.Error
	if _, err := kiln.Get(ctx, h, "a", recipe); !errors.As(err, &typed) || !errors.Is(err, kiln.ErrRefused) || typed.Field != "backend" || !strings.Contains(err.Error(), "want letters, digits") {
		t.Errorf("required: %v", err)
	}
}

// C9, T10: what the environment has wrong is logged once, with what is in force
// instead; a strict environment makes it an error that names all of it. What is
// refused of KILN_STRICT itself is strict.
func TestStrictEnvironment(t *testing.T) {
	wrong := map[string]string{
		"ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY": "cpu:64MB;gpu:7", "KILN_BUCKET": "multiple:281474976710657", "KILN_WORKERS": "2",
	}
	log := new(lines)
	r := open(t, kiln.Config{Lookup: environment(wrong), Logger: slog.New(slog.NewTextHandler(log, nil))})
	if n := len(r.Refusals()); n != 2 || log.count("level=WARN") != 2 || log.count("in force is cpu:unlimited;gpu:7") != 1 || log.count("in force is exact (geometric:8 in kiln run and in encoders)") != 1 {
		t.Errorf("%d refusals, log %q", n, log.b.String())
	}
	for _, strict := range []string{"1", "yes"} {
		wrong["KILN_STRICT"] = strict
		_, err := kiln.Open(kiln.Config{Lookup: environment(wrong), MemoryLimit: "lots", Workers: -1})
		for _, want := range []string{"64MB", "KILN_BUCKET", "MemoryLimit", "Workers"} {
			if !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("KILN_STRICT=%s: %v, want one that names %s", strict, err, want)
			}
		}
		if strings.Contains(err.Error(), "in force") {
			t.Errorf("KILN_STRICT=%s: %v, but nothing is in force", strict, err)
		}
	}
	open(t, kiln.Config{Lookup: environment(map[string]string{"KILN_STRICT": "1", "KILN_WORKERS": "2"})})
}

// A variable that is misspelt is said once, with what may be meant, and never with
// its value.
func TestMisspeltVariable(t *testing.T) {
	t.Setenv("KILN_STORE_DRI", "secret")
	log := new(lines)
	r, err := kiln.Open(kiln.Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(ctx); err != nil {
		t.Error(err)
	}
	if log.count("KILN_STORE_DRI") != 1 || log.count("KILN_STORE_DIR?") != 1 || log.count("secret") != 0 {
		t.Errorf("log %q", log.b.String())
	}
	t.Setenv("KILN_STRICT", "1")
	if _, err := kiln.Open(kiln.Config{}); !errors.Is(err, kiln.ErrInvalid) || !strings.Contains(err.Error(), "KILN_STORE_DIR?") {
		t.Errorf("strict: %v", err)
	}
	open(t, kiln.Config{Lookup: environment(map[string]string{"KILN_STRICT": "1"})}) // an environment of its own
}

// S4: the reader of the environment takes no bucketing that the rooms refuse.
func TestBucketingOfTheEnvironment(t *testing.T) {
	for _, text := range []string{"exact", "pow2", "multiple:1", "multiple:281474976710656", "multiple:281474976710657", "multiple:08", "multiple:0", "geometric:8", "geometric", "geometric:08", "geometric:9223372036854775807", "exact:1"} {
		refused := len(env.Read(environment(map[string]string{"KILN_BUCKET": text})).Refusals) > 0
		if _, err := kiln.ParseBucketing(text); err != nil && !refused {
			t.Errorf("%s is taken: %v", text, err)
		}
	}
}
