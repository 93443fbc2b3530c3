package stress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/internal/guard"
)

// The storm drives all rooms at once, through the door and below it. Creators nest,
// fork, run in circles, fail, panic and end their goroutines; callers leave;
// capacities change; devices are lost; sessions, executors and runtimes are closed
// in the middle and opened again on one store, whose files are damaged.

const (
	tenants    = 4
	stormBytes = 64 << 10 // that sessions share, and that artefacts may take
	stuck      = 2 * time.Minute
	closesIn   = time.Minute
)

// storm is what lasts for the whole run.
type storm struct {
	*run
	dir     string
	bag     bag
	making  single
	now     atomic.Pointer[world]
	spare   atomic.Pointer[device] // an executor of no runtime
	library ops.Library
	worlds  atomic.Uint64
	stalled sync.Once

	mu struct {
		sync.Mutex
		fakes []*fakedevice.Backend
	}
}

// world is one runtime and what was opened in it.
type world struct {
	*kiln.Runtime
	id      string
	fake    *faulty
	tenants [tenants]atomic.Pointer[tenant]
}

// tenant is a session with a name that no other has had.
type tenant struct {
	*kiln.Session
	id string
}

type device struct {
	*gpuexec.Executor
	fake *faulty
}

func openStorm(r *run) (func(context.Context, *rand.Rand) error, func(context.Context) error, error) {
	dir, err := os.MkdirTemp("", "kiln-storm-")
	if err != nil {
		return nil, nil, err
	}
	s := &storm{run: r, dir: dir, library: ops.Find(cpu.Name)}
	random := rand.New(rand.NewPCG(r.seed, 1<<32))
	w, err := s.open(random)
	if err == nil {
		s.now.Store(w)
		s.spare.Store(s.device(random))
	}
	act := func(ctx context.Context, random *rand.Rand) error {
		u := &user{s, s.now.Load(), random, 0}
		return s.apart(func() error {
			ctx, cancel := sometimes(ctx, random)
			defer cancel()
			if random.IntN(64) == 0 {
				ctx = &moody{Context: ctx, calls: 1 + random.Int64N(20)}
			}
			return u.act(ctx)
		})
	}
	return act, s.end, err
}

// apart runs fn on a goroutine that a Free may end, and finds out that it hangs.
func (s *storm) apart(fn func() error) (err error) {
	done := make(chan struct{})
	var failed error
	go func() {
		defer close(done)
		s.guarded(fn, func(err error) { failed = err })
	}()
	timer := time.NewTimer(stuck)
	defer timer.Stop()
	select {
	case <-done:
		return failed
	case <-timer.C:
		s.stalled.Do(func() { s.violated("a call has not returned for %v\n%s", stuck, goroutines()) })
		return nil
	}
}

// guarded runs what contexts and creators make panic, and tells of every other end.
func (s *storm) guarded(fn func() error, failed func(error)) {
	guard.Guard(fn, func(err error) {
		if p := (*fault.PanicError)(nil); errors.As(err, &p) && p.Value != madeToPanic {
			s.violated("%v\n%s", p, p.Stack)
		}
		if !told(err) {
			failed(err)
		}
	})
}

// open opens a runtime on the store of those before.
func (s *storm) open(random *rand.Rand) (*world, error) {
	rt, err := kiln.Open(kiln.Config{
		Lookup:          func(string) (string, bool) { return "", false },
		StoreDir:        filepath.Join(s.dir, "store"),
		StoreBytes:      kiln.LimitOf(96 << 10),
		Store:           blobstore.Config{Durability: blobstore.None, Policy: pick(random, blobstore.FIFO, blobstore.LRU, blobstore.Cost), Identity: identity},
		ArtefactEntries: kiln.LimitOf(mostEntries), ArtefactBytes: kiln.LimitOf(stormBytes),
		CPUConstantsMiB: kiln.LimitOf(1),
		SessionBytes:    kiln.LimitOf(stormBytes), MemoryLimit: pick(random, "off", "1"),
		Workers: 2, Linger: time.Duration(random.IntN(2)) * time.Millisecond,
		Listen: pick(random, nil, func(kiln.Event) {}),
		Logger: slog.New(&log{s.run}),
	})
	if err != nil {
		return nil, err
	}
	w := &world{Runtime: rt, id: fmt.Sprint("world ", s.worlds.Add(1)), fake: s.fake(random)}
	for i := range w.tenants {
		if err := s.move(w, i, random, nil); err != nil {
			return nil, errors.Join(err, rt.Close(context.Background()))
		}
	}
	return w, nil
}

func identity(string) gpuexec.Identity { return gpuexec.Identity{Library: "1", Build: "storm"} }

// move gives a place in the world to a new tenant; the one before stays open. saved
// is what the policy of another one has learnt.
func (s *storm) move(w *world, at int, random *rand.Rand, saved []byte) error {
	cfg := kiln.SessionConfig{Name: fmt.Sprint("tenant ", at), Groups: kiln.LimitOf(mostGroups),
		Policy: [tenants]string{"fifo", "lru", "sieve", "duel"}[at], Keep: pick(random, "always", "worth"), Saved: saved}
	if at == 0 {
		cfg.Floor = kiln.Floor{Bytes: 16 << 10, Groups: 1}
	}
	session, err := w.Session(cfg)
	if err != nil {
		return err
	}
	w.tenants[at].Store(&tenant{session, fmt.Sprint(w.id, " tenant ", s.worlds.Add(1))})
	return nil
}

// device opens an executor of no runtime; nil if its device does not open.
func (s *storm) device(random *rand.Rand) *device {
	for {
		f := s.fake(random)
		e, err := gpuexec.Open(context.Background(), gpuexec.Config{Backend: f, Workers: 2, Queue: 4, Logger: slog.New(&log{s.run})})
		if err == nil {
			return &device{e, f}
		}
	}
}

// reopen opens a world beside the one that is, and closes that under its users.
func (u *user) reopen(ctx context.Context) error {
	next, err := u.open(u.random)
	if err != nil {
		return err
	}
	return u.shut(ctx, u.now.Swap(next))
}

func (s *storm) shut(ctx context.Context, w *world) error {
	if err := s.close(ctx, w.Close); err != nil {
		return fmt.Errorf("closing %s: %w", w.id, err)
	}
	s.left(w.fake.Backend)
	if n := w.Stats().Memory.Bytes; n < 0 {
		s.violated("%s holds %d bytes after Close", w.id, n)
	}
	return nil
}

// close closes with a context that may have ended, or panic, and waits for the end whatever
// that one does: the storm's own end looks at what was closed.
func (s *storm) close(ctx context.Context, fn func(context.Context) error) error {
	_ = s.apart(func() error { return fn(ctx) })
	closing, cancel := context.WithTimeout(context.Background(), closesIn)
	defer cancel()
	return fn(closing)
}

// left looks at a backend whose executor was closed.
func (s *storm) left(f *fakedevice.Backend) {
	if f.Leaked() != 0 || f.Programs() != 0 || f.Memories() != 0 || f.Misuse() != 0 {
		s.violated("a closed executor left %d devices and queues, %d programs, %d buffers; %d misuses", f.Leaked(), f.Programs(), f.Memories(), f.Misuse())
	}
}

func (s *storm) end(ctx context.Context) error {
	defer os.RemoveAll(s.dir)
	s.bag.empty(s)
	err := s.apart(func() error { return s.shut(ctx, s.now.Load()) })
	spare := s.spare.Load()
	err = errors.Join(err, spare.Close(ctx))
	s.left(spare.fake.Backend)
	s.bag.empty(s) // of what creators put there until the end
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.mu.fakes { // what was in the bag has ended since
		s.left(f)
	}
	return err
}

// single finds two creators of one key at a time (SPEC F1).
type single struct{ running sync.Map }

func (s *single) enter(r *run, key string) (leave func()) {
	if _, busy := s.running.LoadOrStore(key, true); busy {
		r.violated("two creators of %s at a time", key)
	}
	return func() { s.running.Delete(key) }
}

// bag keeps things in use for longer than the call that began the use, and than
// the group, session and runtime.
type bag struct {
	mu struct {
		sync.Mutex
		uses []func() // each looks at what it holds, and ends the use
	}
}

const bagged = 48 // most uses kept

// later keeps one more use and ends one that waits if there are too many.
func (u *user) later(end func()) {
	b := &u.bag
	b.mu.Lock()
	uses := append(b.mu.uses, end)
	var out func()
	if len(uses) > bagged {
		i := u.random.IntN(len(uses))
		out, uses[i] = uses[i], uses[len(uses)-1]
		uses = uses[:len(uses)-1]
	}
	b.mu.uses = uses
	b.mu.Unlock()
	if out != nil {
		_ = u.apart(func() error { out(); return nil })
	}
}

func (b *bag) empty(s *storm) {
	b.mu.Lock()
	uses := b.mu.uses
	b.mu.uses = nil
	b.mu.Unlock()
	for _, end := range uses {
		_ = s.apart(func() error { end(); return nil })
	}
}

// log reads what is logged: no turn panics, whatever users' code does.
type log struct{ *run }

func (l *log) Enabled(context.Context, slog.Level) bool { return true }
func (l *log) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *log) WithGroup(string) slog.Handler            { return l }
func (l *log) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "actor: turn panicked" || r.Message == "session: closing" {
		r.Attrs(func(a slog.Attr) bool {
			l.violated("%s: %v", r.Message, a)
			return true
		})
	}
	return nil
}

// moody is a context that panics once, wherever it is asked.
type moody struct {
	context.Context
	calls int64 // until it does
}

func (m *moody) asked() {
	if atomic.AddInt64(&m.calls, -1) == 0 {
		panic(madeToPanic)
	}
}

func (m *moody) Done() <-chan struct{} {
	m.asked()
	return m.Context.Done()
}

func (m *moody) Err() error {
	m.asked()
	return m.Context.Err()
}

func (m *moody) Value(key any) any {
	m.asked()
	return m.Context.Value(key)
}

// told is expected for errors that all rooms may give in the storm.
func told(err error) bool {
	if expected(err) {
		return true
	}
	for _, want := range []error{fault.ErrClosed, fault.ErrCycle, fault.ErrGoexit, fault.ErrOverloaded, fault.ErrDeviceLost,
		fault.ErrTooLarge, fault.ErrSize, fault.ErrNotFound, fault.ErrUnsupported, fault.ErrRefused} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// release calls a Free that is the storm's own now.
func release(free func()) { guard.Call(free, func(error) {}) }

func pick[T any](random *rand.Rand, all ...T) T { return all[random.IntN(len(all))] }
