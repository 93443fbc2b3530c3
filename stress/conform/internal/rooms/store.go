package rooms

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// testBackend is the backend of what scripts store.
const testBackend = "test"

// store binds a persistent store.
type store struct {
	world  *outside.World
	cfg    blobstore.Config
	open   atomic.Pointer[blobstore.Store]
	places outside.Register[string, kept] // of the keys
}

// kept is where a key lies or lay.
type kept struct {
	backend, folder string // the folder below the directory
}

func openStore(c *engine.Call) (engine.Component, error) {
	w := c.World
	settings := settingsOf(w, "KILN_STORE_")
	s := &store{world: w}
	dir := c.Or("dir", settings.StoreDir.Value)
	if !filepath.IsLocal(dir) {
		return nil, fault.Invalidf("conform: store", "dir=%s is not inside the case's directory", dir)
	}
	s.cfg = blobstore.Config{
		Dir: filepath.Join(w.Dir, dir), Policy: blobstore.Policy(c.Or("policy", "")), Durability: blobstore.Durability(c.Or("sync", "")),
		Aborts: func(string) bool { return true },
		Now:    w.Clock.Now,
		After:  func(d time.Duration, f func()) func() bool { return w.Clock.AfterFunc(d, f).Stop },
		Listen: s.listen,
	}
	if settings.StoreCapacity.Source == env.Environment {
		s.cfg.Capacity = settings.StoreCapacity.Value
	}
	s.cfg.Capacity = engine.Parsed(c, "cap", s.cfg.Capacity, parseBytes)
	s.cfg.Lease, s.cfg.Hash = c.Duration("lease", 0), fixedHash(c)
	return s, s.Reopen(c.Ctx)
}

// Reopen opens the store for the machine as the script has it now.
func (s *store) Reopen(ctx context.Context) error {
	identity := machineOf(s.world)
	s.cfg.Identity = func(string) gpuexec.Identity { return identity }
	ctx, err := watched(ctx, s.world)
	if err != nil {
		return err
	}
	opened, err := blobstore.Open(ctx, s.cfg)
	if err == nil {
		s.open.Store(opened)
	}
	return err
}

// watched has rooms work on the machine's files with the script's faults.
func watched(ctx context.Context, w *outside.World) (context.Context, error) {
	disk, err := vfs.Machine()
	return vfs.With(ctx, func(root string) vfs.FS { return vfs.Watch(disk(root), w.Faults.Op) }), err
}

// now is the store as it is open, or was last.
func (s *store) now() *blobstore.Store { return s.open.Load() }

func (s *store) Close(ctx context.Context) error { return s.now().Close(ctx) }

// listen learns where a key was stored.
func (s *store) listen(e blobstore.Event) {
	if e.Kind != "stored" {
		return
	}
	if key, err := os.ReadFile(filepath.Join(s.cfg.Dir, e.Place, "key.bin")); err == nil {
		s.places.Set(string(key), kept{e.Backend, e.Place})
	}
}

// Folder is where the store keeps the key now, else where it kept it last.
func (s *store) Folder(key string) (string, error) {
	last, known := s.places.Lookup(key)
	if known && s.holds(last.folder, key) {
		return filepath.Join(s.cfg.Dir, last.folder), nil
	}
	backend := cmp.Or(last.backend, testBackend)
	bucket := filepath.Join(backend, s.now().Bucket(key))
	slots, err := os.ReadDir(filepath.Join(s.cfg.Dir, bucket))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	for _, slot := range slots {
		if at := filepath.Join(bucket, slot.Name()); s.holds(at, key) {
			s.places.Set(key, kept{backend, at})
			return filepath.Join(s.cfg.Dir, at), nil
		}
	}
	if !known {
		return "", &fault.Error{Op: "conform: store", Key: key, Err: fault.ErrNotFound}
	}
	return filepath.Join(s.cfg.Dir, last.folder), nil
}

func (s *store) holds(place, key string) bool {
	text, err := os.ReadFile(filepath.Join(s.cfg.Dir, place, "key.bin"))
	return err == nil && string(text) == key
}

// Forges knows a stored kernel by how it begins.
func (s *store) Forges(content []byte) bool {
	_, ok := frame.KeySize(content)
	return ok
}

// Forge needs the key, which lies beside the kernel and is part of its digest.
func (s *store) Forge(path string, content []byte, field, value string) ([]byte, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return nil, fault.Invalidf("conform: forge", "%s=%s, want a number", field, value)
	}
	key, err := os.ReadFile(filepath.Join(filepath.Dir(path), "key.bin"))
	if err != nil {
		return nil, err
	}
	return frame.Forge(content, frame.ID{Backend: filepath.Base(filepath.Dir(filepath.Dir(filepath.Dir(path)))), Key: string(key)}, field, n)
}

func (s *store) Verbs() engine.Verbs {
	usage := func(of func(blobstore.Usage) int64) engine.Verb {
		return engine.Verb{Run: func(c *engine.Call) (script.Result, error) {
			u, err := s.now().Usage(c.Ctx)
			return engine.Number(of(u)), err
		}}
	}
	return engine.Verbs{
		"put":         {Least: 2, Most: 2, Options: "bytes cost backend requires", Run: s.put},
		"get":         {Least: 1, Most: 1, Options: "backend", Run: s.get},
		"len":         usage(func(u blobstore.Usage) int64 { return int64(u.Entries) }),
		"size":        usage(func(u blobstore.Usage) int64 { return u.Bytes }),
		"quarantined": usage(func(u blobstore.Usage) int64 { return int64(u.Quarantined) }),
		"audit":       {Run: s.audit},
		"verify":      {Run: s.verify},
		"explain":     {Least: 1, Most: 1, Options: "backend", Run: s.explain},
		"bucket":      {Least: 1, Most: 1, Run: func(c *engine.Call) (script.Result, error) { return script.Say(s.now().Bucket(c.Arg(0))), nil }},
		"count":       {Least: 1, Most: 1, Run: s.count},
	}
}

func (s *store) put(c *engine.Call) (script.Result, error) {
	size := c.Size("bytes", 0)
	if size > 1<<32 {
		return script.Result{}, fault.Invalidf("conform: put", "bytes=%s", c.Or("bytes", ""))
	}
	cost := c.Cost()
	_, padded := c.Option("bytes")
	err := s.now().Put(c.Ctx, c.Or("backend", testBackend), c.Arg(0), payload(c.Arg(1), padded, int(size)), cost, append([]string{}, list(c.Or("requires", ""))...)...) // known: none if not said
	var refused *fault.Error
	if err != nil && !errors.Is(err, fault.ErrInvalid) && errors.As(err, &refused) && refused.Reason != "" {
		return script.Say("refused").With("reason", string(refused.Reason)), nil
	}
	return engine.Done(err)
}

// payload is a value as it is stored: padded with a newline and dots.
func payload(value string, padded bool, size int) []byte {
	p := []byte(value)
	if padded {
		p = append(p, '\n')
		p = append(p, bytes.Repeat([]byte{'.'}, max(0, size-len(p)))...)
	}
	return p
}

// valueIn reads back what payload, or the blob of an artefact, stands for.
// Neither can be what no statement stored.
func valueIn(p []byte) string {
	const garbled = "garbled"
	if b, ok := decodeBlob(p); ok {
		return b.Text
	}
	value, padding, padded := bytes.Cut(p, []byte{'\n'})
	if padded && len(bytes.Trim(padding, ".")) > 0 || !utf8.Valid(value) {
		return garbled
	}
	return string(value)
}

func (s *store) get(c *engine.Call) (script.Result, error) {
	backend := c.Or("backend", testBackend)
	b, miss := engine.Must2(s.now().Get(c.Ctx, backend, c.Arg(0)))
	if !miss.None() {
		return missed(miss.Reason, miss.Field), nil
	}
	s.places.Set(c.Arg(0), kept{backend, b.Place})
	return script.Say(valueIn(b.Payload)).With("bytes", strconv.Itoa(len(b.Payload))), nil
}

func missed(reason fault.Reason, field string) script.Result {
	return engine.Because(script.Say("miss"), reason, field)
}

func (s *store) audit(c *engine.Call) (script.Result, error) {
	size, text, disk, err := s.now().Audit(c.Ctx)
	if err != nil || size == disk && text == disk {
		return engine.Done(err)
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return script.Say().With("size", n(size)).With("text", n(text)).With("disk", n(disk)), nil
}

func (s *store) verify(c *engine.Call) (script.Result, error) {
	bad, err := s.now().Verify(c.Ctx, false)
	return script.Say().With("bad", strconv.Itoa(len(bad))), err
}

func (s *store) explain(c *engine.Call) (script.Result, error) {
	e := engine.Must(s.now().Explain(c.Ctx, c.Or("backend", testBackend), c.Arg(0)))
	if len(e.Factors) == 0 {
		return script.Say("none"), nil
	}
	return script.Say(slices.Sorted(slices.Values(e.Factors))...), nil
}

func (s *store) count(c *engine.Call) (script.Result, error) {
	return countReason(c.Arg(0), func(r fault.Reason) int64 { return s.now().Stats().Reasons[r] })
}
