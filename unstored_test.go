package kiln_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P17: the cache below the door says what is not stored, too: by reason, by a log line for
// the backend, and by an error where the store is required.
func TestNotStorableBelowTheDoor(t *testing.T) {
	log := new(lines)
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), Logger: slog.New(slog.NewTextHandler(log, nil)),
		Store: blobstore.Config{Identity: func(string) gpuexec.Identity { return gpuexec.Identity{Library: "1"} }}}
	made := 0
	request := func(key, backend string) artefacts.Request {
		create := func(context.Context) (artefacts.Built, error) { made++; return artefacts.Built{}, nil }
		return artefacts.Request{Key: key, Backend: backend, Create: create, Load: func(context.Context, []byte) (artefacts.Built, error) { return artefacts.Built{}, nil }}
	}
	r := open(t, cfg)
	for _, c := range []struct{ key, backend, field string }{{"a", "mine", "build"}, {"b", "mine", "build"}, {"c", "my/jit", "backend"}} {
		l, o, err := r.Artefacts().Get(ctx, request(c.key, c.backend))
		if err != nil || o.Event != artefacts.Miss || o.Reason != fault.Disabled || o.Field != c.field {
			t.Errorf("%s: %+v, %v", c.key, o, err)
		}
		l.End()
	}
	if log.count("nothing of this backend is stored") != 2 || log.count("backend=mine reason=disabled field=build") != 1 {
		t.Errorf("it is logged as\n%s", log.b.String())
	}
	if n := r.Artefacts().Stats().Reasons[fault.Disabled]; n != 3 {
		t.Errorf("counted %d times", n)
	}
	cfg.StoreRequired = true
	_, o, err := open(t, cfg).Artefacts().Get(ctx, request("a", "mine"))
	if reason, field := fault.ReasonOf(err); !errors.Is(err, kiln.ErrRefused) || reason != fault.Disabled || field != "build" || o.Reason != reason || o.Field != field || made != 3 {
		t.Errorf("required: %+v, %v, %d were made", o, err, made)
	}
}

// P17: a key that is too long for a store says so: by reason, once in the log, and as an
// error where the store is required.
func TestKeyTooLongForTheStore(t *testing.T) {
	log := new(lines)
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), ArtefactEntries: kiln.LimitOf(1), Logger: slog.New(slog.NewTextHandler(log, nil))}
	r := open(t, cfg)
	fits, long := strings.Repeat("k", blobstore.LongestKey), strings.Repeat("k", blobstore.LongestKey+1)
	for _, key := range []string{long, fits, long} {
		s := session(t, r)
		g := group(t, s, 1)
		must(kiln.Get(ctx, g, "n", stored(key, 7)))
		g.Close()
		if err := s.Close(ctx); err != nil { // so that the artefact can go
			t.Fatal(err)
		}
	}
	if err := r.Artefacts().Settle(ctx); err != nil {
		t.Fatal(err)
	}
	if n, stores := r.Artefacts().Stats().Reasons[fault.TooLarge], r.Store().Stats().Stores; n != 2 || stores != 1 {
		t.Errorf("counted %d times; %d stored", n, stores)
	}
	if log.count("not stored: the key has 1048577 bytes: at most 1048576 are stored") != 1 || log.count("reason=too_large field=key") != 1 {
		t.Errorf("it is logged as\n%.2000s", log.b.String())
	}
	cfg.StoreRequired = true
	r = open(t, cfg)
	g := group(t, session(t, r), 1)
	defer g.Close()
	_, err := kiln.Get(ctx, g, "n", stored(long, 7))
	if reason, field := fault.ReasonOf(err); !errors.Is(err, kiln.ErrRefused) || reason != fault.TooLarge || field != "key" {
		t.Errorf("required: %.300v", err)
	}
}

// P17: what a recipe can load, and has made without a Blob, is not stored, and says so:
// once a key, and as an error where the store is required. What was made is freed then.
func TestMadeWithoutABlob(t *testing.T) {
	log := new(lines)
	var told []kiln.Event
	freed := 0
	recipe := func(key string) kiln.Recipe[int] {
		q := stored(key, 7)
		q.Make = func(context.Context) (kiln.Made[int], error) {
			return kiln.Made[int]{Value: 7, Free: func() { freed++ }}, nil
		}
		return q
	}
	cfg := kiln.Config{StoreDir: filepath.Join(t.TempDir(), "store"), ArtefactEntries: kiln.LimitOf(1),
		Listen: func(e kiln.Event) { told = append(told, e) }, Logger: slog.New(slog.NewTextHandler(log, nil))}
	r := open(t, cfg)
	for _, key := range []string{"a", "b", "a"} {
		s := session(t, r)
		g := group(t, s, 1)
		must(kiln.Get(ctx, g, key, recipe(key)))
		if e := told[len(told)-1]; e.Kind != kiln.Miss || e.Reason != fault.Disabled || e.Field != "blob" {
			t.Errorf("%s: %+v", key, e)
		}
		g.Close()
		if err := s.Close(ctx); err != nil { // so that the artefact can go
			t.Fatal(err)
		}
	}
	if log.count("key=a backend=go reason=disabled field=blob") != 1 || log.count("key=b") != 1 || log.count("set Made.Blob") != 2 {
		t.Errorf("it is logged as\n%s", log.b.String())
	}
	if err := r.Close(ctx); err != nil || freed != 3 {
		t.Fatalf("%d of 3 freed, %v", freed, err)
	}
	cfg.StoreRequired = true
	r = open(t, cfg)
	g := group(t, session(t, r), 1)
	_, err := kiln.Get(ctx, g, "a", recipe("a"))
	if reason, field := fault.ReasonOf(err); !errors.Is(err, kiln.ErrRefused) || reason != fault.Disabled || field != "blob" {
		t.Errorf("required: %v", err)
	}
	g.Close()
	if err := r.Close(ctx); err != nil || freed != 4 {
		t.Errorf("%d of 4 freed, %v", freed, err)
	}
}
