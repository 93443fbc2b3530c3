package gpuexec

import (
	"context"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/flight"
)

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
	lostMsg    struct{ on *generation }
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
