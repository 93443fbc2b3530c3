//go:build unix

package pipelinefile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is the identity that tests run under unless they say otherwise.
func machine() pipelinefile.Identity {
	return pipelinefile.Identity{
		Library: "kiln-1", Vendor: 0x10de, Device: 7, API: version(1, 3, 0), Driver: 100, DriverID: 4,
		DriverName: "driver", DriverInfo: "100.1", DeviceName: "card",
		UUID: pipelinefile.UUID{1}, DeviceUUID: pipelinefile.UUID{2}, DriverUUID: pipelinefile.UUID{3},
	}
}

func version(major, minor, patch uint32) uint32 { return major<<22 | minor<<12 | patch }

// fakeDriver is a driver whose caches are sets of what was built, written down
// behind the standard header one a line.
type fakeDriver struct {
	t  testing.TB
	id pipelinefile.Identity

	refuse, failMerge, failBlob atomic.Bool
	opened, merged, delivered   atomic.Int64 // opened: with a blob
	built, alive, caches        atomic.Int64
	calls, most                 atomic.Int64 // under way, and how many at once at most

	onFree func() // set before a pipeline is built
	onBlob func() // set before a blob is asked for

	mu      sync.Mutex
	onBuild func(ctx context.Context, m pipelinefile.Module) error
}

type fakeCache struct {
	driver *fakeDriver
	mu     sync.Mutex
	lines  map[string]bool
	gone   atomic.Bool
}

var errDriver = errors.New("driver says no")

// called counts a call until what it gives is called.
func (d *fakeDriver) called() (ended func()) {
	n := d.calls.Add(1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
	}
	return func() { d.calls.Add(-1) }
}

func (d *fakeDriver) OpenCache(_ context.Context, blob []byte) (pipelinefile.DriverCache, error) {
	defer d.called()()
	c := &fakeCache{driver: d, lines: map[string]bool{}}
	if blob != nil {
		d.opened.Add(1)
		if d.refuse.Load() {
			return nil, fmt.Errorf("%w: %w", fault.ErrRefused, errDriver)
		}
		if miss := layout.CheckBlob(blob, &layout.Identity{Machine: layout.Machine(d.id)}); miss.Reason != "" {
			d.t.Errorf("the driver saw a blob that does not fit: %s", miss)
		}
		for line := range bytes.Lines(blob[layout.BlobHeader:]) {
			c.lines[string(line)] = true
		}
	}
	d.caches.Add(1)
	return c, nil
}

func (d *fakeDriver) Build(ctx context.Context, m pipelinefile.Module, cache pipelinefile.DriverCache) (pipelinefile.Pipeline, error) {
	defer d.called()()
	d.mu.Lock()
	on := d.onBuild
	d.mu.Unlock()
	if on != nil {
		if err := on(ctx, m); err != nil {
			return nil, err
		}
	}
	if cache != nil {
		c := cache.(*fakeCache)
		if c.gone.Load() {
			d.t.Error("a destroyed driver cache was used")
		}
		c.mu.Lock()
		c.lines[fmt.Sprintln(m.Shader, m.Words, m.Options, m.Constants)] = true
		c.mu.Unlock()
	}
	d.built.Add(1)
	d.alive.Add(1)
	return &fakePipeline{driver: d, module: m}, nil
}

func (d *fakeDriver) during(on func(ctx context.Context, m pipelinefile.Module) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.onBuild = on
}

func (c *fakeCache) Merge(_ context.Context, from pipelinefile.DriverCache) error {
	defer c.driver.called()()
	c.driver.merged.Add(1)
	if c.driver.failMerge.Load() {
		return errDriver
	}
	f := from.(*fakeCache)
	if c.gone.Load() || f.gone.Load() {
		c.driver.t.Error("a destroyed driver cache was merged")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for line := range f.lines {
		c.lines[line] = true
	}
	return nil
}

func (c *fakeCache) Blob(context.Context) ([]byte, error) {
	defer c.driver.called()()
	if on := c.driver.onBlob; on != nil {
		on()
	}
	c.driver.delivered.Add(1)
	if c.driver.failBlob.Load() {
		return nil, errDriver
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	blob := layout.AppendBlobHeader(nil, &layout.Identity{Machine: layout.Machine(c.driver.id)})
	for line := range c.lines {
		blob = append(blob, line...)
	}
	return blob, nil
}

func (c *fakeCache) Destroy() {
	defer c.driver.called()()
	if c.gone.Swap(true) {
		c.driver.t.Error("a driver cache was destroyed twice")
	}
	c.driver.caches.Add(-1)
}

type fakePipeline struct {
	driver *fakeDriver
	module pipelinefile.Module
	gone   atomic.Bool
}

func (p *fakePipeline) Destroy() {
	defer p.driver.called()()
	if p.gone.Swap(true) {
		p.driver.t.Error("a pipeline was destroyed twice")
	}
	p.driver.alive.Add(-1)
	if p.driver.onFree != nil {
		p.driver.onFree()
	}
}

// fakeFront compiles a source to its bytes as words.
type fakeFront struct {
	compiled  atomic.Int64
	onCompile func(ctx context.Context, shader string) error
}

func (f *fakeFront) Compile(ctx context.Context, shader string, source []byte, options uint64) ([]uint32, error) {
	f.compiled.Add(1)
	if f.onCompile != nil {
		if err := f.onCompile(ctx, shader); err != nil {
			return nil, err
		}
	}
	words := []uint32{0x07230203, uint32(options)}
	for _, b := range source {
		words = append(words, uint32(b))
	}
	return words, nil
}

// rig is a cache over a fake driver and front end.
type rig struct {
	*pipelinefile.Cache
	t      testing.TB
	driver *fakeDriver
	front  *fakeFront
}

type option func(*setup)

// setup is what a test opens a cache with.
type setup struct {
	pipelinefile.Config
	fs func(root string) vfs.FS // nil = the machine's
}

func (s *setup) context(t testing.TB) context.Context {
	if s.fs == nil {
		return t.Context()
	}
	return vfs.With(t.Context(), s.fs)
}

func withIdentity(id pipelinefile.Identity) option {
	return func(c *setup) { c.Identity = id }
}

func open(t testing.TB, options ...option) *rig {
	t.Helper()
	front := &fakeFront{}
	driver := &fakeDriver{t: t}
	cfg := setup{Config: pipelinefile.Config{FrontEnd: front, Identity: machine(), Driver: driver}}
	for _, o := range options {
		o(&cfg)
	}
	driver.id = cfg.Identity
	c, err := pipelinefile.Open(cfg.context(t), cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{c, t, driver, front}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := driver.caches.Load(); n != 0 {
			t.Errorf("%d driver caches are left after Close", n)
		}
		if n := driver.alive.Load(); n != 0 {
			t.Errorf("%d pipelines are left after Close", n)
		}
		eventually(t, actors.Idle, "lent goroutines end")
	})
	return r
}

func (r *rig) shader(name, source string) {
	r.t.Helper()
	if err := r.Register(name, []byte(source)); err != nil {
		r.t.Fatal(err)
	}
}

// get gets and ends the lease at once.
func (r *rig) get(req pipelinefile.Request, want pipelinefile.Origin) {
	r.t.Helper()
	l, origin, err := r.Get(r.t.Context(), req)
	if err != nil {
		r.t.Fatalf("get %s: %v", req.Shader, err)
	}
	if p := l.Pipeline().(*fakePipeline); p.gone.Load() || p.module.Options != req.Options {
		r.t.Errorf("get %s: a wrong or destroyed pipeline", req.Shader)
	}
	l.End()
	if want != "" && origin != want {
		r.t.Errorf("get %s: by %s, want %s", req.Shader, origin, want)
	}
}

func (r *rig) built(names ...string) {
	r.t.Helper()
	for _, n := range names {
		r.get(pipelinefile.Request{Shader: n}, pipelinefile.Built)
	}
}

func (r *rig) save(path string) pipelinefile.Saved {
	r.t.Helper()
	s, err := r.Save(r.t.Context(), path)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func (r *rig) bytes() []byte {
	r.t.Helper()
	file, _, err := r.SaveBytes(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return file
}

// load expects a file to be taken.
func (r *rig) load(path string, entries int, blob bool) {
	r.t.Helper()
	l, err := r.Load(r.t.Context(), path)
	if err != nil || l.Reason != "" || l.Entries != entries || l.Blob != blob {
		r.t.Errorf("load: %+v, %v, want %d entries, blob %v", l, err, entries, blob)
	}
}

// misses expects the bytes to be no usable file and to leave nothing behind.
func (r *rig) misses(file []byte, reason, field string) {
	r.t.Helper()
	spirv, live := r.SPIRV(), r.Len()
	l, err := r.LoadBytes(r.t.Context(), file)
	if err != nil || l.Reason == "" || reason != "*" && string(l.Reason) != reason || field != "*" && l.Field != field || l.Entries != 0 || l.Blob {
		r.t.Errorf("load: %+v, %v, want a miss by %s (%s)", l, err, reason, field)
	}
	if r.SPIRV() != spirv || r.Len() != live {
		r.t.Errorf("a miss left something behind")
	}
}

func (r *rig) counts(name string, got, want int64) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %d, want %d", name, got, want)
	}
}

func eventually(t testing.TB, ok func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within ten seconds: %s", what)
		}
		time.Sleep(time.Millisecond) // polling with a deadline
	}
}
