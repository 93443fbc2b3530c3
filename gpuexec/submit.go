package gpuexec

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// Submit runs launches in their order on one worker and returns when they have
// run. If one of them is wrong (ErrInvalid), none is launched; a grid that only
// the backend knows to be too large ends the sequence there. If ctx ends first,
// Submit returns at once and no further launch begins; the launches and their Args
// then still belong to the executor and must not be changed.
//
// Other errors: ErrOverloaded where the queue is full, ErrDeviceLost, ErrClosed,
// the context's, and the driver's, a panic of it among them.
func (e *Executor) Submit(ctx context.Context, launches ...Launch) error {
	j, err := e.sequence(ctx, launches)
	if err != nil {
		return err
	}
	return e.ended("submit", "", e.do(ctx, j))
}

func init() {
	hidden.Fill = func(ctx context.Context, buffer any, write func(into []byte) error) error {
		b := buffer.(*Buffer)
		return b.exec.ended("write", "", b.fill(ctx, write))
	}
	hidden.Adopt = func(ctx context.Context, executor any, memory []byte, release func()) (any, error) {
		return executor.(*Executor).reserve(ctx, int64(len(memory)), func(d Device) (Memory, error) {
			if d, can := d.(adopter); can {
				return d.Adopt(memory, release), nil
			}
			return nil, fmt.Errorf("executor: adopt: the device has memory of its own only: %w", fault.ErrUnsupported)
		})
	}
}

// adopter is a Device whose kernels can read memory that is not its own. Release of what
// Adopt gives calls release, which may be called again.
type adopter interface {
	Adopt(memory []byte, release func()) Memory
}

// fill has the buffer written in place, or copied to where the host does not share its memory.
// What writes it may wait for a file: neither a worker nor a place in the queue is taken
// meanwhile. No device is closed before it has ended, though the caller leaves it behind when
// ctx ends or the executor is closed.
func (b *Buffer) fill(ctx context.Context, write func(into []byte) error) error {
	e, to := b.exec, CopyTo(b, 0, nil)
	if err := pinLaunch(&to); err != nil {
		return err
	}
	if !b.on.enter() {
		b.cell.Unpin()
		if e.life.Err() != nil {
			return fault.ErrClosed
		}
		return to.Args[0].gone()
	}
	into := b.mapped
	if into == nil {
		into = make([]byte, b.bytes)
	}
	done := make(chan error, 1)
	b.on.zone.Lend(actors.Go)(func() {
		guard.Guard(func() error { return write(into) }, func(err error) {
			b.cell.Unpin()
			b.on.leave()
			done <- err
		})
	})
	select {
	case err := <-done:
		if err != nil || b.mapped != nil {
			return err
		}
		return e.Write(ctx, b, 0, into)
	case <-e.life.Done():
		return fault.ErrClosed
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// Run is a sequence of launches that Start or StartAfter has handed over. Safe for concurrent use.
type Run struct {
	exec *Executor
	job  *job
}

// Start is Submit without the wait: it returns when the launches are queued, and
// Wait gives what became of them. Runs overlap, copies with kernels too, and overtake
// each other, on as many workers as there are: StartAfter gives them an order. The
// launches, their Args and the bytes of StructArg and of copies belong to the executor
// until the run has ended. Once Start has returned, the end of ctx changes nothing:
// Cancel does.
//
// Errors: ErrInvalid for a wrong launch, the context's, ErrClosed.
func (e *Executor) Start(ctx context.Context, launches ...Launch) (*Run, error) {
	return e.StartAfter(ctx, nil, launches...)
}

// StartAfter is Start of launches that begin when other runs of this executor have
// ended, on whatever worker. No worker and no goroutine waits for them, but a place in
// the queue is taken. Without launches, the run ends when they all have.
//
// If one of the runs has failed, or was cancelled, no launch begins when they have ended,
// and Wait gives a *fault.Error whose Op is "executor: earlier run" and which wraps the
// error of the first of them that did. A run of another executor is ErrInvalid.
func (e *Executor) StartAfter(ctx context.Context, runs []*Run, launches ...Launch) (*Run, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var after []*job
	for i, r := range runs {
		if r == nil || r.exec != e {
			return nil, fault.Invalidf("executor: start", "run %d of those to wait for is none of this executor", i)
		}
		after = append(after, r.job)
	}
	j, err := e.sequence(ctx, launches)
	if err != nil {
		return nil, err
	}
	j.after, j.answered = after, make(chan struct{})
	if !e.ref.Tell(submitMsg{j}) {
		j.end()
		return nil, e.ended("start", "", fault.ErrClosed)
	}
	return &Run{e, j}, nil
}

// Wait waits until the run has ended, and gives its error, as Submit does: ErrOverloaded
// where the queue was full, context.Canceled after Cancel. The end of ctx ends the
// waiting only. Waiting again gives the same again.
func (r *Run) Wait(ctx context.Context) error {
	done := ctx.Done() // user code: asked on this goroutine alone
	select {
	case <-r.job.answered:
		return r.exec.ended("wait", "", r.job.err)
	case <-done:
		return guard.Ended(ctx)
	case <-r.exec.ref.Stopped():
	}
	r.job.answer(fault.ErrClosed) // nobody else does it any more
	if !r.job.handled.Load() {
		r.job.end()
	}
	<-r.job.answered
	return r.exec.ended("wait", "", r.job.err)
}

// Cancel ends the run before its next launch. It does not wait.
func (r *Run) Cancel() {
	r.exec.ref.Tell(withdrawMsg{r.job})
	r.job.abort()
}

// sequence checks launches and gives the job that has them run. What they need is pinned
// until its end.
func (e *Executor) sequence(ctx context.Context, launches []Launch) (*job, error) {
	select {
	case <-e.ref.Stopped(): // whoever closed it has released kernels and buffers, too
		return nil, e.ended("submit", "", fault.ErrClosed)
	default:
	}
	things := 0
	for i := range launches {
		if err := e.check(&launches[i]); err != nil {
			return nil, err
		}
		things += 1 + len(launches[i].Args)
	}
	unpin, err := pin(launches)
	if err != nil {
		return nil, err
	}
	j := newJob(ctx, func(ctx context.Context, w *worker) (err error) {
		// What was launched keeps its kernels and buffers until it has run, whoever has left,
		// and whatever became of the driver's call for another launch.
		defer func() {
			if w.lost {
				return
			}
			w.lost = true // unless Finish returns: what it was to wait for may run still
			ended := w.queue.Finish(context.WithoutCancel(ctx))
			w.lost = false
			err = cmp.Or(err, w.note(ended))
		}()
		for i := range launches {
			if err := ctx.Err(); err != nil {
				return err
			}
			if launches[i].Kernel != nil {
				e.launches.Add(1)
			}
			if err := w.launch(ctx, &launches[i]); err != nil {
				return err
			}
		}
		return nil
	}, unpin)
	j.things = things
	return j, nil
}

// pin keeps every kernel and buffer of the launches; what it returns lets go.
func pin(launches []Launch) (func(), error) {
	n := 0 // launches pinned in full
	unpin := func() {
		for i := range launches[:n] {
			l := &launches[i]
			if l.Kernel != nil {
				l.Kernel.cell.Unpin()
			}
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
	if l.Kernel == nil {
		if !l.Args[0].buffer.cell.Pin() {
			return fault.Invalidf("executor: "+l.Args[0].verb(), "the buffer was released")
		}
		return nil
	}
	if !l.Kernel.cell.Pin() {
		return fault.Invalidf("executor: launch", "kernel %s was released", l.Kernel.name())
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
		return fault.Invalidf("executor: launch", "argument %d of kernel %s was released", i, l.Kernel.name())
	}
	return nil
}

// do has a worker run the job, and waits for it.
func (e *Executor) do(ctx context.Context, j *job) error {
	asked, left := false, true
	var err error
	defer func() {
		switch {
		case !left:
		case !asked: // ctx had ended before
			j.end()
		case e.ref.Tell(withdrawMsg{j}):
			j.abort()
		case !j.handled.Load():
			j.end() // the actor has stopped without ever seeing it
		default:
			j.abort()
			if err == fault.ErrClosed { // it stopped before what the job pinned was let go
				<-e.gone
			}
		}
	}()
	_, err = actors.Ask(ctx, e.ref, func(reply actors.Reply[struct{}]) message {
		asked = true
		j.reply = reply
		return submitMsg{j}
	})
	left = err != nil // or ctx panicked
	return err
}

// released waits until workers have released all that they were asked to before.
func (e *Executor) released(ctx context.Context) error {
	e.releases.Lock()
	jobs := slices.Collect(maps.Keys(e.releases.jobs))
	e.releases.Unlock()
	for _, j := range jobs {
		select {
		case <-j.answered:
		case <-ctx.Done():
			return guard.Ended(ctx)
		case <-e.life.Done():
			return fault.ErrClosed
		}
	}
	return nil
}

// release has a worker release what belongs to a device. What is left when a
// device is closed goes with it.
func (e *Executor) release(on *generation, release func()) {
	var j *job
	j = newJob(context.Background(), func(_ context.Context, w *worker) error {
		if w.on == on && !on.spoilt.Load() {
			release()
		}
		return nil
	}, func() {
		e.releases.Lock()
		defer e.releases.Unlock()
		delete(e.releases.jobs, j)
	})
	j.own, j.answered = true, make(chan struct{})
	e.releases.Lock()
	e.releases.jobs[j] = struct{}{}
	e.releases.Unlock()
	if !e.ref.Tell(submitMsg{j}) {
		j.end()
	}
}
