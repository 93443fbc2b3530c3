package artefacts_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

func TestMain(m *testing.M) {
	c, err := artefacts.Open(artefacts.Config{}) // the actor system must not begin inside a bubble
	if err == nil {
		err = c.Close(context.Background())
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const patience = 10 * time.Second

// device stands for what lies outside of the cache: creators, drivers, and the
// count of what they did.
type device struct {
	mu struct {
		sync.Mutex
		creations, aborted, freed, loads map[string]int
		events                           map[string][]string
		rules                            map[string]maker // as "creates" of the scripts
	}
}

func newDevice() *device {
	d := new(device)
	d.mu.creations, d.mu.aborted = map[string]int{}, map[string]int{}
	d.mu.freed, d.mu.loads = map[string]int{}, map[string]int{}
	d.mu.events, d.mu.rules = map[string][]string{}, map[string]maker{}
	return d
}

func (d *device) grow(m map[string]int, key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m[key]++
}

func (d *device) count(m map[string]int, keys ...string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		n += m[k]
	}
	return n
}

func (d *device) listen(key string, o artefacts.Outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.events[key] = append(d.mu.events[key], string(o.Event))
}

func (d *device) events(key string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.mu.events[key], " ")
}

// maker is a fake creator, with the options of the conformance scripts.
type maker struct {
	value    string // "" = the key
	bytes    int64  // 0 = 1
	wait     chan struct{}
	fail     string
	panics   string
	goexit   bool
	nest     []string
	kernel   string
	owner    string
	noBlob   bool
	refuse   bool   // the driver refuses every blob
	bad      string // the blob that the driver refuses
	requires []string
	stubborn bool   // heeds no context
	free     func() // what its Free does first
}

var errDriver = errors.New("driver: no")

// request makes a Request that behaves as m says.
func (d *device) request(c *artefacts.Cache, key string, m maker) artefacts.Request {
	if m.value == "" {
		m.value = key
	}
	if m.bytes == 0 {
		m.bytes = 1
	}
	return artefacts.Request{
		Key: key, Owner: m.owner, Backend: "test",
		Create: func(ctx context.Context) (artefacts.Built, error) { return d.create(ctx, c, key, m) },
		Load: func(_ context.Context, blob []byte) (artefacts.Built, error) {
			d.grow(d.mu.loads, key)
			value, ok := strings.CutPrefix(string(blob), "blob:")
			if m.refuse || !ok || m.bad == string(blob) {
				return artefacts.Built{}, errDriver
			}
			return d.built(value, m), nil
		},
	}
}

func (d *device) create(ctx context.Context, c *artefacts.Cache, key string, m maker) (artefacts.Built, error) {
	d.grow(d.mu.creations, key)
	for _, part := range m.nest {
		d.mu.Lock()
		rule := d.mu.rules[part]
		d.mu.Unlock()
		l, _, err := c.Get(ctx, d.request(c, part, rule))
		if err != nil {
			return artefacts.Built{}, err
		}
		defer l.End()
	}
	if m.wait != nil {
		abandoned := ctx.Done()
		if m.stubborn {
			abandoned = nil
		}
		select {
		case <-m.wait:
		case <-abandoned:
			d.grow(d.mu.aborted, key)
			return artefacts.Built{}, ctx.Err()
		}
	}
	if m.fail != "" {
		return artefacts.Built{}, errors.New(m.fail)
	}
	m.misbehave()
	if m.kernel != "" {
		_, err := c.Kernel(ctx, artefacts.Request{Key: m.kernel, Create: func(context.Context) (artefacts.Built, error) {
			d.grow(d.mu.creations, "kernel:"+m.kernel)
			return artefacts.Built{Value: m.kernel, Bytes: 1, Free: func() { d.grow(d.mu.freed, "kernel:"+m.kernel) }}, nil
		}})
		if err != nil {
			return artefacts.Built{}, err
		}
	}
	return d.built(m.value, m), nil
}

func (m maker) misbehave() {
	switch {
	case m.panics != "":
		panic(m.panics)
	case m.goexit:
		runtime.Goexit()
	}
}

func (d *device) built(value string, m maker) artefacts.Built {
	b := artefacts.Built{Value: value, Bytes: m.bytes, Cost: time.Second, Requires: m.requires}
	b.Free = func() {
		d.grow(d.mu.freed, value)
		if m.free != nil {
			m.free()
		}
	}
	if !m.noBlob {
		b.Blob = func(context.Context) ([]byte, error) { return []byte("blob:" + value), nil }
	}
	return b
}

// room is a cache under test with its device.
type room struct {
	*artefacts.Cache
	*device
	t testing.TB
}

func open(t testing.TB, cfg artefacts.Config) room {
	t.Helper()
	d := newDevice()
	if cfg.Listen == nil {
		cfg.Listen = d.listen
	}
	c, err := artefacts.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := room{c, d, t}
	t.Cleanup(func() { r.close() })
	return r
}

func (r room) close() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

func entries(n int64) artefacts.Config { return artefacts.Config{Entries: limit.Of(n)} }

// get gives "value by=event", or "error: text".
func (r room) get(key string, m maker) string { return r.getIn(context.Background(), key, m) }

func (r room) getIn(ctx context.Context, key string, m maker) string {
	l, o, err := r.Get(ctx, r.request(r.Cache, key, m))
	return said(l, o, err)
}

func said(l *artefacts.Lease, o artefacts.Outcome, err error) string {
	if err != nil {
		return "error " + word(err)
	}
	if l == nil {
		return "miss reason=" + string(o.Reason)
	}
	defer l.End()
	return l.Value().(string) + " by=" + string(o.Event)
}

// word names an error as the scripts do.
func word(err error) string {
	var p *fault.PanicError
	switch {
	case errors.Is(err, fault.ErrCycle):
		return "cycle"
	case errors.Is(err, fault.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.As(err, &p):
		if len(p.Stack) == 0 {
			return "panic without a stack"
		}
		return "panic " + p.Value.(string)
	case errors.Is(err, fault.ErrGoexit):
		return "goexit"
	case errors.Is(err, fault.ErrInvalid):
		return "invalid"
	case errors.Is(err, fault.ErrUnsupported):
		return "unsupported"
	case errors.Is(err, fault.ErrNotFound):
		return "not_found"
	case errors.Is(err, fault.ErrRefused):
		return "refused"
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		err = e
	}
	return "failed " + err.Error()
}

func (r room) peek(key string) string {
	l, o, err := r.Peek(context.Background(), key)
	if l != nil && err == nil {
		defer l.End()
		return l.Value().(string)
	}
	return said(l, o, err)
}

func (r room) has(keys ...string) (n int) {
	for _, k := range keys {
		if r.Has(k) {
			n++
		}
	}
	return n
}

func (r room) setEntries(n int64) {
	r.t.Helper()
	if err := r.SetCapacity(limit.Of(n), limit.Limit{}); err != nil {
		r.t.Fatal(err)
	}
}

// each gives the keys prefix+from ... prefix+to.
func each(prefix string, from, to int) (keys []string) {
	for i := from; i <= to; i++ {
		keys = append(keys, prefix+strconv.Itoa(i))
	}
	return keys
}

func (r room) fill(keys ...string) {
	r.t.Helper()
	for _, k := range keys {
		if got := r.get(k, maker{}); got != k+" by=miss" {
			r.t.Fatalf("get %s = %s, want a miss", k, got)
		}
	}
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

// eventually waits until a count of work off the caller's path matches.
func eventually[T comparable](t testing.TB, what string, got func() T, want T) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for got() != want {
		if time.Now().After(deadline) {
			t.Fatalf("%s = %v, want %v", what, got(), want)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (r room) eventuallyFreed(value string, n int) {
	r.t.Helper()
	eventually(r.t, "freed "+value, func() int { return r.count(r.mu.freed, value) }, n)
}

// calls runs get in n goroutines. In a bubble it returns when all of them wait,
// in a creator or for one.
func (r room) calls(ctx context.Context, n int, key string, m maker) <-chan string {
	out := make(chan string, n) // one answer each
	for range n {
		go func() { out <- r.getIn(ctx, key, m) }()
	}
	synctest.Wait()
	return out
}

// all takes n answers and counts them.
func all(out <-chan string, n int) map[string]int {
	got := map[string]int{}
	for range n {
		got[<-out]++
	}
	return got
}
