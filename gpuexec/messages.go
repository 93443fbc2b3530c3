package gpuexec

import (
	"time"

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
	lostMsg struct {
		on  *generation
		by  *job  // that came to know; nil = none
		err error // of by
	}
	upMsg struct {
		fresh *generation
		pause time.Duration // before the next opening
	}
	readyMsg struct {
		reply actors.Reply[flight.Ticket[struct{}]]
	}
	compileMsg  struct{ call *compiling }
	leftMsg     struct{ flight *compiling } // a caller has left it
	expiredMsg  struct{ flight *compiling } // the end of its linger time
	compiledMsg struct {
		flight *compiling
		kernel *Kernel
		err    error
	}
	settledMsg struct {
		kernel *Kernel
		over   bool // its linger time is
	}
	giveUpMsg struct { // the compiles of a desk
		desk *desk
		err  error
	}
	endedMsg  struct{} // the rest of those that waited for runs that have ended
	strandMsg struct{} // the rest of those that waited for a device that is gone
	stopMsg   struct{} // no compile any more; the device runs on
	closeMsg  struct{ reply actors.Reply[*generation] }
)

func (submitMsg) isMessage()   {}
func (withdrawMsg) isMessage() {}
func (doneMsg) isMessage()     {}
func (lostMsg) isMessage()     {}
func (upMsg) isMessage()       {}
func (readyMsg) isMessage()    {}
func (compileMsg) isMessage()  {}
func (leftMsg) isMessage()     {}
func (expiredMsg) isMessage()  {}
func (compiledMsg) isMessage() {}
func (settledMsg) isMessage()  {}
func (giveUpMsg) isMessage()   {}
func (endedMsg) isMessage()    {}
func (strandMsg) isMessage()   {}
func (stopMsg) isMessage()     {}
func (closeMsg) isMessage()    {}

// Fail answers a request whose turn panicked.
func (m submitMsg) Fail(err error)  { m.job.answer(err) }
func (m readyMsg) Fail(err error)   { m.reply.Fail(err) }
func (m compileMsg) Fail(err error) { m.call.reply.Fail(err) }
func (m closeMsg) Fail(err error)   { m.reply.Fail(err) }
