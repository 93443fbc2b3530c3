package sessioncache_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// box is a session as the conformance scripts see it: values are texts, and how
// often each was freed is counted.
type box struct {
	*sessioncache.Session
	t testing.TB

	mu struct {
		sync.Mutex
		freed map[string]int
		made  map[string]int
	}
}

func open(t testing.TB, c sessioncache.Config) *box {
	t.Helper()
	s, err := sessioncache.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &box{Session: s, t: t}
	b.mu.freed, b.mu.made = make(map[string]int), make(map[string]int)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

func fifo(groups int64) sessioncache.Config {
	return sessioncache.Config{Policy: "fifo", Groups: sessioncache.LimitOf(groups)}
}

func shape(t testing.TB, n int) shapegroups.Shape {
	t.Helper()
	s, err := shapegroups.N(int64(n))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// value is one whose Free is counted under its text.
func (b *box) value(text string) sessioncache.Value {
	return sessioncache.Value{Any: text, Free: func() {
		b.mu.Lock()
		b.mu.freed[text]++
		b.mu.Unlock()
	}}
}

func (b *box) set(n int, name, text string, o ...sessioncache.Options) {
	b.t.Helper()
	if err := b.Set(bg, shape(b.t, n), name, b.value(text), append(o, sessioncache.Options{})[0]); err != nil {
		b.t.Fatal(err)
	}
}

func (b *box) sized(n int, name, text string, bytes int64) error {
	v := b.value(text)
	v.Bytes = bytes
	return b.Set(bg, shape(b.t, n), name, v, sessioncache.Options{})
}

// get is the value's text or "absent".
func (b *box) get(n int, name string) string {
	b.t.Helper()
	r, ok := b.Lookup(shape(b.t, n), name, 0)
	if !ok {
		return "absent"
	}
	return r.Value().(string)
}

func (b *box) lease(n int, name string) *sessioncache.Lease {
	b.t.Helper()
	r, ok := b.Lookup(shape(b.t, n), name, 0)
	if !ok {
		b.t.Fatalf("%d %s is absent", n, name)
	}
	l, ok := r.Acquire()
	if !ok {
		b.t.Fatalf("%d %s cannot be leased", n, name)
	}
	return l
}

// run is get, else create and set.
func (b *box) run(n int, name, text string) (string, sessioncache.Event) {
	b.t.Helper()
	v, event, err := b.try(bg, shape(b.t, n), name, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
		return b.value(text), nil
	})
	if err != nil {
		b.t.Errorf("run %d %s: %v", n, name, err)
	}
	return v, event
}

func (b *box) try(ctx context.Context, s shapegroups.Shape, name string, o sessioncache.Options, create sessioncache.Create) (string, sessioncache.Event, error) {
	h, err := b.Group(ctx, s)
	if err != nil {
		return "", "", err
	}
	defer h.Close()
	r, event, err := h.Get(ctx, name, o, create)
	if err != nil {
		return "", "", err
	}
	text, _ := r.Value().(string)
	return text, event, nil
}

// has is how many of the shapes are registered.
func (b *box) has(shapes ...int) (n int) {
	b.t.Helper()
	for _, k := range shapes {
		if b.Has(shape(b.t, k)) {
			n++
		}
	}
	return n
}

func (b *box) stats() sessioncache.Stats {
	b.t.Helper()
	if _, err := b.Stream(bg); err != nil { // a turn, so that all uses are counted
		b.t.Fatal(err)
	}
	return b.Stats()
}

// freed waits until the value was freed so often; what happens off the caller's
// path may end a little later.
func (b *box) freed(text string, want int) {
	b.t.Helper()
	eventually(b.t, func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.mu.freed[text] == want
	}, func() any {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.mu.freed[text]
	}, "freed "+text, want)
}

func eventually(t testing.TB, ok func() bool, got func() any, what string, want any) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: got %v, want %v", what, got(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

func want[T comparable](t interface {
	Helper()
	Errorf(string, ...any)
}, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func wantError(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}
