package actors

import (
	"context"
	"log/slog"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Config of one actor. The zero value is usable.
type Config struct {
	Name      string       // for logs
	Admission int          // most requests of Ask waiting at a time; 0 = no limit
	Logger    *slog.Logger // nil = silent
}

// Failer is implemented by a message that carries a Reply: it is called with
// the error when the handler panicked on that message.
type Failer interface{ Fail(error) }

// Ref is the address of one actor that takes messages of type M.
// Safe for concurrent use.
type Ref[M any] struct {
	cfg     Config
	handle  func(M)
	pool    *pool
	pid     *actor.PID
	mailbox *mailbox
	stopped chan struct{}
	stop    sync.Once
	waiting atomic.Int64 // requests admitted and not yet handled
	panics  atomic.Int64
	spare   sync.Pool // envelopes
}

// envelope carries a message through the library, which would take apart some
// types (batches) if it saw them bare.
type envelope[M any] struct {
	message  M
	admitted bool
}

// system is started on first use: one a process costs 3 ms and 3 MB.
var system = sync.OnceValue(func() *actor.ActorSystem {
	return actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
		return slog.New(slog.DiscardHandler)
	}))
})

// Spawn starts an actor whose handle is called for each message in turn. What
// handle works on must live outside of it: it is the room's state, which a
// panic in one turn does not throw away.
func Spawn[M any](cfg Config, handle func(M)) *Ref[M] {
	cfg.Logger = guard.Logger(cfg.Logger, Go)
	r := &Ref[M]{cfg: cfg, handle: handle, pool: retainPool(), mailbox: newMailbox(), stopped: make(chan struct{})}
	props := actor.PropsFromFunc(r.receive, actor.WithMailbox(func() actor.Mailbox { return r.mailbox }), actor.WithDispatcher(dispatcher{r.pool}))
	for r.pid == nil {
		r.pid = spawn(props)
	}
	return r
}

// spawn gives nil where the library has a name for the actor that it cannot place:
// the hash of every second name is negative as an int of 32 bits, and is used as an
// index. The next name is another one.
func spawn(props *actor.Props) (pid *actor.PID) {
	if strconv.IntSize == 32 {
		defer func() { _ = recover() }()
	}
	return system().Root.Spawn(props)
}

func (r *Ref[M]) receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *envelope[M]:
		if m.admitted {
			r.waiting.Add(-1)
		}
		message := m.message
		*m = envelope[M]{}
		r.spare.Put(m) // the library does not look at it again
		r.turn(message)
	case *actor.Stopped:
		r.handle = nil // who keeps the Ref does not keep the room's state
		r.pool.release()
		close(r.stopped)
	}
}

// turn handles one message and survives its panic.
func (r *Ref[M]) turn(m M) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		r.panics.Add(1)
		err := &fault.PanicError{Value: v, Stack: debug.Stack()}
		// What is called here is not ours either; a panic that left this turn
		// would have the library restart the actor, and stop it after ten.
		defer func() { _ = recover() }()
		if f, ok := any(m).(Failer); ok {
			f.Fail(err)
		}
		r.cfg.Logger.Error("actor: turn panicked", "actor", r.cfg.Name, "panic", v, "stack", string(err.Stack))
	}()
	r.handle(m)
}

func (r *Ref[M]) ended() bool {
	select {
	case <-r.stopped:
		return true
	default:
		return false
	}
}

// Tell sends a message and does not wait. A message to a stopped actor is
// dropped; Tell then reports false. One that overtakes the end, sent after Stop
// began and before Stopped is closed, is dropped too, though Tell reported true.
func (r *Ref[M]) Tell(m M) bool {
	if r.ended() {
		return false
	}
	r.mailbox.PostUserMessage(r.envelope(m, false))
	return true
}

// Do is Tell for a goroutine that has nothing else to do: where nobody handles the
// actor's messages, the calling goroutine handles them, up to m. sent, if it is not
// nil, is called once, before any of these turns, whether m was sent or not. Do is not
// to be called in a turn, nor with a lock that a turn takes.
func (r *Ref[M]) Do(m M, sent func()) bool {
	if r.ended() {
		if sent != nil {
			sent()
		}
		return false
	}
	r.mailbox.hand(r.envelope(m, false), sent, nil)
	return true
}

func (r *Ref[M]) envelope(m M, admitted bool) *envelope[M] {
	e, _ := r.spare.Get().(*envelope[M])
	if e == nil {
		e = new(envelope[M])
	}
	*e = envelope[M]{m, admitted}
	return e
}

// Ask sends the request that build makes around a fresh Reply and waits for the
// answer. It ends with the context's error if that comes first, ErrClosed if
// the actor stops, ErrOverloaded if Config.Admission requests wait already.
func Ask[M, T any](ctx context.Context, r *Ref[M], build func(Reply[T]) M) (T, error) {
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, err
	}
	done := ctx.Done() // user code: before anything is sent
	if n := r.waiting.Add(1); r.cfg.Admission > 0 && n > int64(r.cfg.Admission) {
		r.waiting.Add(-1)
		if r.ended() { // what was dropped at the end still counts as waiting
			return zero, fault.ErrClosed
		}
		return zero, fault.ErrOverloaded
	}
	reply := newReply[T](r.pool)
	m := build(reply)
	if r.ended() {
		r.waiting.Add(-1)
		return zero, fault.ErrClosed
	}
	r.mailbox.hand(r.envelope(m, true), nil, done)
	return reply.wait(ctx, done, r.stopped, r.pool)
}

// Stop lets the messages sent before it be handled, then ends the actor. It
// waits for the end or the context, whichever is first; the actor ends in
// either case. Calling it again waits again.
func (r *Ref[M]) Stop(ctx context.Context) error {
	r.stop.Do(func() { system().Root.Poison(r.pid) })
	select {
	case <-r.stopped:
		return nil
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// Stopped is closed when the actor has ended.
func (r *Ref[M]) Stopped() <-chan struct{} { return r.stopped }

// Queued is the number of messages in the mailbox: those sent before this call whose
// turns have not begun, and none that will be sent after it.
func (r *Ref[M]) Queued() int { return r.mailbox.UserMessageCount() }

// Panics is the number of turns that panicked so far.
func (r *Ref[M]) Panics() int { return int(r.panics.Load()) }
