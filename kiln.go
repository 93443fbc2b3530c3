package kiln

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/pressure"
	"github.com/kiln-cache/kiln/internal/progress"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Runtime is the caches of one process, wired together. Safe for concurrent use.
type Runtime struct {
	cfg       Config
	settings  env.Settings
	logger    *slog.Logger
	artefacts *artefacts.Cache
	constants *constants.Cache
	spare     pressure.Unused                            // of them
	stops     struct{ artefacts, constants flight.Stop } // that of artefacts that were brought is nil
	persisted persistence
	record    *recorder          // nil: Config.Record is not set
	memory    *pressure.Watch    // nil: no limit
	pool      *sessioncache.Pool // nil: no limit

	identities sync.Map // backend name -> gpuexec.Identity, of requests that bring none
	unstored   sync.Map // backend name -> true where it was logged that nothing of it is stored
	keysTold   keys     // that are too long, or whose recipes load and made what has no Blob

	crew     crew            // closes sessions, and frees what they held
	progress progress.Teller // of what takes long
	opens    flight.Locked[executorID, *device]
	asks     flight.Locked[string, gpuexec.Identity]      // for identities, by the backend's name
	opening  struct{ sessions, executors sync.WaitGroup } // under way; none begins once over is set
	closing  sync.Once
	last     []*Session    // that were open when Close began; set by closing
	closed   chan struct{} // closed when Close has ended
	errs     error         // of Close; set before closed

	mu struct {
		sync.Mutex
		over      bool
		sessions  map[*Session]struct{}
		executors map[executorID]*device
	}
}

type executorID struct {
	backend gpuexec.Backend
	index   int
}

// device is an executor with a number that no other of the process has.
type device struct {
	exec   *gpuexec.Executor
	number uint64
	stop   flight.Stop // of its compiles
}

// devices counts the executors that were opened.
var devices atomic.Uint64

// Open starts a runtime. It reads the environment once. What it refuses there is
// logged, with what is in force instead, and so is a variable that begins with KILN_
// and that it does not know, or is nearly one of oneDNN's that it reads; with
// KILN_STRICT=1 both are errors. ErrInvalid names
// the fields of the config that are wrong, all at once. On an error nothing stays
// open.
func Open(cfg Config) (*Runtime, error) {
	r := &Runtime{cfg: cfg, settings: cfg.settings(), closed: make(chan struct{})}
	r.logger = guard.Logger(cmp.Or(cfg.Logger, slog.New(guard.Warnings{To: slog.Default().Handler()})), r.crew.zone.Lend(actors.Go))
	r.progress = progress.Teller{Slow: time.Second, Lend: r.crew.zone.Lend(actors.GoOn), Join: r.crew.join, Leave: r.crew.back}
	if cfg.Record {
		r.record = &recorder{entries: make(map[artefactID]*Entry)}
	}
	if err := errors.Join(cfg.validate(), r.environment()); err != nil {
		return nil, err
	}
	err := r.bound()
	if err != nil {
		return nil, err
	}
	linger := cmp.Or(cfg.Linger, lingering)
	if r.artefacts = cfg.Artefacts; r.artefacts == nil {
		if r.cfg.Store.Identity == nil {
			r.cfg.Store.Identity = identity
		}
		if r.persisted, err = openStore(r.cfg, r.settings, r.memory, &r.crew.zone, r.logger); err != nil {
			return nil, err
		}
		r.persisted.keepDriverCaches(r.cfg, r.settings, r.logger)
		r.artefacts, err = artefacts.Open(hidden.With(artefacts.Config{
			Entries: r.settings.ArtefactCapacity.Value, Bytes: cfg.ArtefactBytes, Linger: linger,
			Store: r.persisted.below(), Logger: r.logger, Evicted: cfg.Evicted,
		}, r.memory, &r.crew.zone, r.crew.lend, r.storable, &r.stops.artefacts))
		if err != nil {
			return nil, errors.Join(err, r.persisted.close(context.Background()))
		}
	}
	r.constants, err = constants.Open(hidden.With(constantsConfig(r.settings, cfg.Listen, linger, r.logger),
		r.memory, &r.spare, &r.crew.zone, r.crew.lend, r.announcer(), &r.stops.constants))
	if err != nil {
		return nil, errors.Join(err, r.closeArtefacts(context.Background()))
	}
	r.mu.sessions = make(map[*Session]struct{})
	r.mu.executors = make(map[executorID]*device)
	r.opens = flight.Locked[executorID, *device]{Mu: &r.mu, Scope: r, Lend: func(open func()) {
		r.opening.executors.Add(1)
		actors.Go(func() {
			defer r.opening.executors.Done()
			open()
		})
	}}
	r.asks = flight.Locked[string, gpuexec.Identity]{Mu: &r.mu, Scope: &r.identities, Lend: r.crew.lend}
	return r, nil
}

// none reports a Runtime that Open did not give. Like a closed one, it has nothing
// open and opens nothing.
func (r *Runtime) none() bool { return r == nil || r.closed == nil }

// it is r, and in place of nil one that Open did not give.
func (r *Runtime) it() *Runtime {
	if r == nil {
		r = new(Runtime)
	}
	return r
}

// Artefacts is the cache of compiled things that all sessions share.
func (r *Runtime) Artefacts() *artefacts.Cache { return r.it().artefacts }

// Store is the persistent store below the artefacts, for its figures and upkeep;
// nil where there is none. The runtime closes it.
func (r *Runtime) Store() *blobstore.Store { return r.it().persisted.store }

// Constants is the cache of prepared constant tensors.
func (r *Runtime) Constants() *constants.Cache { return r.it().constants }

// Settings is the environment as Open read it, with the config over it.
func (r *Runtime) Settings() []env.Row { return env.Table(r.it().settings) }

// Refusals are the entries of the environment that Open refused.
func (r *Runtime) Refusals() []env.Refusal { return r.it().settings.Refusals }

// Sessions are the sessions that are open at this moment, by name.
func (r *Runtime) Sessions() []*Session {
	r = r.it()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Keys(r.mu.sessions), func(a, b *Session) int { return cmp.Compare(a.name, b.name) })
}

// Executors are the executors that were opened, in the order in which they were.
func (r *Runtime) Executors() []*gpuexec.Executor {
	r = r.it()
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*gpuexec.Executor
	for _, d := range slices.SortedFunc(maps.Values(r.mu.executors), func(a, b *device) int { return cmp.Compare(a.number, b.number) }) {
		all = append(all, d.exec)
	}
	return all
}

// lingering is how long what somebody asked for goes on being made when all have
// left (SPEC F4).
const lingering = time.Minute

// Executor gives the executor of a device, the same one each time; the first call
// has it opened, for every caller that asks meanwhile, and ctx ends the waiting
// only: one that is open is given also where ctx has ended. The runtime closes it: one
// that somebody else has closed stays so.
// ErrInvalid: the backend cannot be compared, or does not equal itself, so that nobody
// could tell whether it is the same; a pointer can.
func (r *Runtime) Executor(ctx context.Context, backend gpuexec.Backend, index int) (*gpuexec.Executor, error) {
	if r.none() {
		return nil, errNoRuntime
	}
	if backend == nil {
		return nil, fault.Invalidf("kiln: executor", "no backend: import the package that registers it, such as gpuexec/cpu")
	}
	if !reflect.ValueOf(&backend).Elem().Comparable() {
		return nil, fault.Invalidf("kiln: executor", "a backend of type %T cannot be compared: give a pointer to it", backend)
	}
	if again := backend; again != backend {
		return nil, fault.Invalidf("kiln: executor", "a backend of type %T does not equal itself, as a NaN does not: give a pointer to it", backend)
	}
	id := executorID{backend, index}
	r.mu.Lock()
	d, over := r.mu.executors[id], r.mu.over
	r.mu.Unlock()
	if d != nil && !over { // also where ctx has ended: nobody waits
		return d.exec, nil
	}
	_, err := r.opens.Ride(ctx, flight.Want[executorID, *device]{
		Key: id, Name: backend.Name() + ":" + strconv.Itoa(index), Linger: lingering,
		Look: func() (bool, error) {
			if r.mu.over {
				return false, errClosed
			}
			d = r.mu.executors[id]
			return d != nil, nil
		},
		Make: func(ctx context.Context) (*device, error) { return r.open(ctx, id) },
		Keep: func(made *device) { r.mu.executors[id] = made },
		Take: func(made *device) { d = made },
		Release: func(made *device) {
			if _, own := r.number(made.exec); !own { // the runtime was closed meanwhile
				_ = made.exec.Close(context.Background())
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return d.exec, nil
}

func (r *Runtime) open(ctx context.Context, id executorID) (*device, error) {
	d := &device{number: devices.Add(1)}
	var err error
	d.exec, err = gpuexec.Open(ctx, hidden.With(gpuexec.Config{Backend: id.backend, Index: id.index,
		Workers: int(r.settings.Workers.Value), Linger: r.cfg.Linger, Listen: r.cfg.Compiling, Logger: r.logger}, &r.crew.zone, r.spare, &d.stop))
	if err != nil {
		return nil, err
	}
	return d, nil
}

// number tells the executors of this runtime from each other and from those of
// every other runtime. It reports false for an executor that is not its own.
func (r *Runtime) number(e *gpuexec.Executor) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.mu.executors {
		if d.exec == e {
			return d.number, true
		}
	}
	return 0, false
}

// Close closes the sessions, the artefacts, the constants and the executors, in
// this order, and waits for their creators and finalisers, those of sessions that
// were closed before among them; who waits in any of these rooms is answered at once, but
// runs on a device go on until its executor closes, for the Frees before that. A
// value that a group or a lease still holds is freed when that ends, and may find its
// device closed. ctx ends the waiting only. Closing again waits again and gives the same
// error. A Free, listener, log handler, Make, Load or driver that Close waits for may not
// wait for Close: on the goroutine that Kiln called it on, or with the context of a
// creator of a Session's Cache, Close answers ErrCycle at once; the closing goes on.
func (r *Runtime) Close(ctx context.Context) error {
	if r.none() {
		return nil
	}
	r.closing.Do(func() {
		r.mu.Lock()
		r.mu.over = true
		r.last = slices.Collect(maps.Keys(r.mu.sessions))
		r.mu.Unlock()
		actors.Go(r.close)
	})
	inside := func(s *Session) bool { return flight.Inside(ctx, s.in()) }
	if r.crew.zone.Here() || slices.ContainsFunc(r.last, inside) { // ctx is the user's code
		return &fault.Error{Op: "kiln: close", Err: ErrCycle}
	}
	select {
	case <-r.closed:
		return r.errs
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (r *Runtime) close() {
	defer close(r.closed)
	ctx := context.Background()
	r.mu.Lock()
	r.opens.Strand(errClosed)
	r.asks.Strand(errClosed)
	stops := []flight.Stop{r.stops.artefacts, r.stops.constants}
	for _, d := range r.mu.executors {
		stops = append(stops, d.stop)
	}
	r.mu.Unlock()
	// Before any is waited for: none answers its callers later for another (SPEC F8).
	for _, s := range r.last {
		_ = s.Close(noWait)
	}
	for _, stop := range stops {
		if stop != nil {
			stop()
		}
	}
	r.opening.sessions.Wait()
	errs := []error{r.memory.Close(ctx)}
	for _, s := range r.last {
		errs = append(errs, s.Close(ctx))
	}
	r.crew.wait()
	errs = append(errs, r.closeArtefacts(ctx), r.constants.Close(ctx))
	r.crew.wait()     // for what they lent, and for listeners of what has ended
	r.progress.Stop() // a constant may be computed still, by a caller that does not heed its context
	r.crew.wait()     // for who is told just now
	r.opening.executors.Wait()
	for _, d := range r.mu.executors { // nothing is opened any more
		_ = d.exec.Close(noWait)
	}
	for _, d := range r.mu.executors {
		errs = append(errs, d.exec.Close(ctx))
	}
	r.errs = errors.Join(errs...)
}

// noWait is a context to close something with, and not to wait for that.
var noWait = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// closeArtefacts closes the cache and the store below, if the runtime opened them.
func (r *Runtime) closeArtefacts(ctx context.Context) error {
	if r.cfg.Artefacts != nil {
		return nil
	}
	return errors.Join(r.artefacts.Close(ctx), r.persisted.close(ctx))
}
