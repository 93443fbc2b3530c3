package gpuexec

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
)

// Executor runs kernels on one device. Safe for concurrent use.
type Executor struct {
	cfg    Config
	info   DeviceInfo
	limits Limits
	ref    *actors.Ref[message]
	shell  *shell
	slots  chan struct{}   // one for each compile that may run
	life   context.Context // ends when Close begins
	end    context.CancelFunc
	once   sync.Once
	gone   chan struct{} // closed when the device is closed and every goroutine has ended

	compiles, blobLoads, launches, restarts atomic.Int64

	mu struct {
		sync.Mutex
		kernels map[*Kernel]struct{} // to be rebuilt when the device comes back
	}
}

// Open opens the device and starts its workers. The error says what is wrong
// with the configuration, or is the backend's; then nothing stays open.
func Open(ctx context.Context, cfg Config) (*Executor, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Workers == 0 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	if cfg.Compiles == 0 {
		cfg.Compiles = cfg.Workers
	}
	if cfg.Queue == 0 {
		cfg.Queue = defaultQueue
	}
	if cfg.Slow == 0 {
		cfg.Slow = defaultSlow
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Executor{cfg: cfg, gone: make(chan struct{})}
	e.life, e.end = context.WithCancel(context.WithoutCancel(ctx))
	e.mu.kernels = make(map[*Kernel]struct{})
	e.shell = newShell(e)
	e.ref = actors.Spawn(actors.Config{Name: "executor " + cfg.Backend.Name(), Logger: cfg.Logger}, e.shell.handle)
	g, err := e.openGeneration(ctx, 1)
	if err != nil {
		e.end()
		_ = e.ref.Stop(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("executor: open %s:%d: %w", cfg.Backend.Name(), cfg.Index, err)
	}
	e.info, e.limits = g.device.Info(), g.device.Limits()
	compiles := cfg.Compiles
	if e.limits.CompileWorkers > 0 {
		compiles = min(compiles, e.limits.CompileWorkers)
	}
	e.slots = make(chan struct{}, compiles)
	e.ref.Tell(upMsg{g})
	return e, nil
}

// Info describes the device.
func (e *Executor) Info() DeviceInfo { return e.info }

// Identity is what stored code must fit that this device compiles or loads: the
// device said it when it was opened. It asks nobody. An empty Build means that it
// is not known; then nothing is stored (SPEC P12). ISA is to be read only.
func (e *Executor) Identity() Identity { return e.info.Identity }

// Limits are the device's.
func (e *Executor) Limits() Limits { return e.limits }

// Submit runs launches in their order on one worker and returns when they have
// run. Nothing is launched if any of them is wrong (ErrInvalid), but for a grid
// that only the backend knows to be too large: that ends the sequence there. If
// ctx ends first the caller is answered at once and no further launch begins;
// launches and their Args then still belong to the executor and must not be
// changed.
func (e *Executor) Submit(ctx context.Context, launches ...Launch) error {
	for i := range launches {
		if err := e.check(&launches[i]); err != nil {
			return err
		}
	}
	pinned, err := pin(launches)
	if err != nil {
		return err
	}
	return e.do(ctx, func(ctx context.Context, w *worker) error {
		for i := range launches {
			if err := ctx.Err(); err != nil {
				return err
			}
			e.launches.Add(1)
			if err := w.launch(ctx, &launches[i]); err != nil {
				return err
			}
		}
		return w.note(w.queue.Finish(ctx))
	}, pinned)
}

// pin keeps every kernel and buffer of the launches; what it returns lets go.
func pin(launches []Launch) (func(), error) {
	n := 0 // launches pinned in full
	unpin := func() {
		for i := range launches[:n] {
			l := &launches[i]
			l.Kernel.cell.Unpin()
			for _, a := range l.Args {
				if a.buffer != nil {
					a.buffer.cell.Unpin()
				}
			}
		}
	}
	for ; n < len(launches); n++ {
		if err := pinLaunch(&launches[n]); err != nil {
			unpin()
			return nil, err
		}
	}
	return unpin, nil
}

func pinLaunch(l *Launch) error {
	if !l.Kernel.cell.Pin() {
		return fault.Invalidf("executor: launch", "kernel %s was released", l.Kernel)
	}
	for i, a := range l.Args {
		if a.buffer == nil || a.buffer.cell.Pin() {
			continue
		}
		for _, b := range l.Args[:i] {
			if b.buffer != nil {
				b.buffer.cell.Unpin()
			}
		}
		l.Kernel.cell.Unpin()
		return fault.Invalidf("executor: launch", "argument %d of kernel %s was released", i, l.Kernel)
	}
	return nil
}

// do has a worker run fn, and waits for it.
func (e *Executor) do(ctx context.Context, fn func(context.Context, *worker) error, ended func()) error {
	j := newJob(ctx, fn, ended)
	asked := false
	_, err := actors.Ask(ctx, e.ref, func(r actors.Reply[struct{}]) message {
		asked = true
		j.reply = r
		return submitMsg{j}
	})
	switch {
	case err == nil:
	case !asked: // ctx had ended before
		j.end()
	case !e.ref.Tell(withdrawMsg{j}) && !j.handled.Load():
		j.end() // the actor has stopped without ever seeing it
	}
	return err
}

// Alloc reserves device memory, filled with zeros.
func (e *Executor) Alloc(ctx context.Context, bytes int64) (*Buffer, error) {
	if bytes < 1 {
		return nil, fault.Invalidf("executor: alloc", "%d bytes, want at least 1", bytes)
	}
	var made atomic.Pointer[Buffer]
	var left atomic.Bool // the asker has gone: whoever takes the buffer out releases it
	err := e.do(ctx, func(_ context.Context, w *worker) error {
		m, err := w.device.Alloc(bytes)
		if w.note(err) != nil {
			return err
		}
		b := &Buffer{exec: e, bytes: bytes, gen: w.gen, memory: m}
		b.cell.Init(b.free)
		made.Store(b)
		if left.Load() {
			releaseFrom(&made)
		}
		return nil
	}, nil)
	if err != nil {
		left.Store(true)
		releaseFrom(&made)
		return nil, err
	}
	return made.Load(), nil
}

func releaseFrom(made *atomic.Pointer[Buffer]) {
	if b := made.Swap(nil); b != nil {
		b.Release()
	}
}

// Write copies bytes into a buffer from an offset on.
func (e *Executor) Write(ctx context.Context, b *Buffer, offset int64, from []byte) error {
	return e.copy(ctx, "write", b, offset, from, Queue.Write)
}

// Read copies bytes out of a buffer from an offset on. After an error that is
// the context's, into may still be written to.
func (e *Executor) Read(ctx context.Context, b *Buffer, offset int64, into []byte) error {
	return e.copy(ctx, "read", b, offset, into, Queue.Read)
}

func (e *Executor) copy(ctx context.Context, verb string, b *Buffer, offset int64, host []byte, move func(Queue, Memory, int64, []byte) error) error {
	switch {
	case b == nil || b.exec != e:
		return fault.Invalidf("executor: "+verb, "the buffer is not of this executor")
	case offset < 0 || int64(len(host)) > b.bytes-offset:
		return fault.Invalidf("executor: "+verb, "%d bytes at %d, the buffer has %d", len(host), offset, b.bytes)
	case !b.cell.Pin():
		return fault.Invalidf("executor: "+verb, "the buffer was released")
	}
	return e.do(ctx, func(ctx context.Context, w *worker) error {
		if b.gen != w.gen {
			return fault.Wrap("executor: "+verb, "", "the buffer was lost with its device: allocate it again", ErrDeviceLost)
		}
		if err := w.note(move(w.queue, b.memory, offset, host)); err != nil {
			return err
		}
		return w.note(w.queue.Finish(ctx))
	}, b.cell.Unpin)
}

// releaseOnWorker has a worker release what belongs to a generation. What is
// left when a device is closed goes with it.
func (e *Executor) releaseOnWorker(gen uint64, release func()) {
	j := newJob(context.Background(), func(_ context.Context, w *worker) error {
		if w.gen == gen {
			release()
		}
		return nil
	}, nil)
	j.own = true
	if !e.ref.Tell(submitMsg{j}) {
		j.end()
	}
}

// Ready waits until the device runs: at once, unless it was lost.
func (e *Executor) Ready(ctx context.Context) error {
	_, err := actors.Ask(ctx, e.ref, func(r actors.Reply[struct{}]) message { return readyMsg{r} })
	return err
}

// Stats are counts since Open.
func (e *Executor) Stats() Stats {
	return Stats{Compiles: e.compiles.Load(), BlobLoads: e.blobLoads.Load(), Launches: e.launches.Load(),
		Restarts: e.restarts.Load(), Queued: e.shell.queued.Load()}
}

// Close answers everybody who waits with ErrClosed, ends driver calls where that
// is possible, waits for the workers, and closes the device with all that is
// left on it. ctx ends the waiting only. Closing again waits again.
func (e *Executor) Close(ctx context.Context) error {
	e.once.Do(func() {
		e.end()
		actors.Go(e.shutDown)
	})
	select {
	case <-e.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *Executor) shutDown() {
	defer close(e.gone)
	ctx := context.Background()
	e.takeDevice(ctx)
	e.shell.work.Wait() // compiles, retired generations and a restart in progress
	e.takeDevice(ctx)
	_ = e.ref.Stop(ctx)
}

// takeDevice has the actor answer everybody and closes the device it gives away.
func (e *Executor) takeDevice(ctx context.Context) {
	g, err := actors.Ask(ctx, e.ref, func(r actors.Reply[*generation]) message { return closeMsg{r} })
	if err == nil && g != nil {
		err = g.retire()
	}
	if err != nil {
		e.cfg.Logger.Error("executor: close", "device", e.info.Name, "error", err)
	}
}
