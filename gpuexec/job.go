package gpuexec

import (
	"context"
	"sync/atomic"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
)

// job is work for one run worker: a sequence of launches, a copy, an
// allocation, or a release.
type job struct {
	own   bool // the executor's: never refused for a full queue, nobody waits
	ctx   context.Context
	abort context.CancelFunc
	reply actors.Reply[struct{}]
	run   func(ctx context.Context, w *worker) error
	ended func() // no worker will touch what the job pinned any more

	handled atomic.Bool // the actor has seen it
	over    atomic.Bool // ended was called
	started bool        // a worker has it; the actor's
}

func newJob(ctx context.Context, run func(context.Context, *worker) error, ended func()) *job {
	j := &job{run: run, ended: ended}
	j.ctx, j.abort = context.WithCancel(ctx)
	return j
}

// end is called once the job cannot run any more.
func (j *job) end() {
	if j.over.CompareAndSwap(false, true) {
		j.abort()
		if j.ended != nil {
			j.ended()
		}
	}
}

// The messages of the executor's actor.
type message interface{ isMessage() }

type (
	submitMsg   struct{ job *job }
	withdrawMsg struct{ job *job }
	doneMsg     struct {
		job *job
		gen uint64
		err error
	}
	lostMsg    struct{ gen uint64 }
	upMsg      struct{ fresh *generation }
	readyMsg   struct{ reply actors.Reply[struct{}] }
	compileMsg struct {
		ctx    context.Context
		source Source
		blob   []byte // nil = compile
		reply  actors.Reply[ticket]
	}
	compiledMsg struct {
		flight *making
		kernel *Kernel
		err    error
	}
	closeMsg struct{ reply actors.Reply[*generation] }
)

// ticket is a place at a compile in progress; without joined it is only to be
// waited for.
type ticket struct {
	flight *flight.Flight[*Kernel]
	joined bool
	others bool // another's blob is loaded
}

func (submitMsg) isMessage()   {}
func (withdrawMsg) isMessage() {}
func (doneMsg) isMessage()     {}
func (lostMsg) isMessage()     {}
func (upMsg) isMessage()       {}
func (readyMsg) isMessage()    {}
func (compileMsg) isMessage()  {}
func (compiledMsg) isMessage() {}
func (closeMsg) isMessage()    {}

// Fail answers a request whose turn panicked.
func (m submitMsg) Fail(err error)  { m.job.reply.Fail(err) }
func (m readyMsg) Fail(err error)   { m.reply.Fail(err) }
func (m compileMsg) Fail(err error) { m.reply.Fail(err) }
func (m closeMsg) Fail(err error)   { m.reply.Fail(err) }
