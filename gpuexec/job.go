package gpuexec

import (
	"context"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
)

// job is work for one run worker: a sequence of launches, a copy, an
// allocation, or a release.
type job struct {
	own    bool // the executor's: never refused for a full queue, and nobody waits for it
	ctx    context.Context
	abort  context.CancelFunc
	reply  actors.Reply[struct{}] // of a caller that waits
	run    func(ctx context.Context, w *worker) error
	ended  func() // no worker will touch what the job pinned any more: things, in number
	things int

	handled atomic.Bool // the actor has seen it
	over    atomic.Bool // ended was called
	started bool        // a worker has it; the actor's

	after []*job // the runs that it waits for; nil once they have ended

	told     atomic.Bool
	answered chan struct{} // of a Run: closed when its caller may know err; else nil
	err      error
}

// answer tells the caller how the job ended. Only the first answer counts.
func (j *job) answer(err error) {
	if j.decide(err) {
		j.tell()
	}
}

// decide sets how the job ended, for jobs that wait for it too, and reports whether nobody
// has before: then tell follows.
func (j *job) decide(err error) bool {
	first := j.told.CompareAndSwap(false, true)
	if first {
		j.err = err
	}
	return first
}

func (j *job) tell() {
	if j.answered == nil {
		j.reply.Answer(struct{}{}, j.err)
	} else {
		close(j.answered)
	}
}

// newJob makes a job that its caller aborts: no goroutine of the executor, and no
// turn, asks ctx for its end, which may be user code.
func newJob(ctx context.Context, run func(context.Context, *worker) error, ended func()) *job {
	j := &job{run: run, ended: ended}
	j.ctx, j.abort = context.WithCancel(context.WithoutCancel(ctx))
	return j
}

// earlier is the Op of the error of a run that did not begin because one that it waits
// for has failed.
const earlier = "executor: earlier run"

// allowed gives that error. The runs have ended; along a chain it is wrapped once.
func (j *job) allowed() error {
	after := j.after
	j.after = nil // else the last of a chain keeps all of it
	for _, other := range after {
		if e, passedOn := other.err.(*fault.Error); passedOn && e.Op == earlier {
			return e
		}
		if other.err != nil {
			return &fault.Error{Op: earlier, Err: other.err}
		}
	}
	return nil
}

// end is called once the job cannot run any more.
func (j *job) end() {
	if j.over.CompareAndSwap(false, true) {
		j.abort()
		ended := j.ended
		j.after, j.run, j.ended = nil, nil, nil // who keeps a Run does not keep what it needed
		if ended != nil {
			ended()
		}
	}
}
