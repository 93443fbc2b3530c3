package gpuexec

import (
	"cmp"
	"container/list"
	"time"

	"github.com/kiln-cache/kiln/internal/flight"
)

// unclaimed is a kernel that was made and that no caller has taken: it waits for
// one that asks again (SPEC F4).
type unclaimed struct {
	kernel *Kernel       // pinned
	linger time.Duration // the longest that a caller of its compile asked for
	timer  *time.Timer   // of that; nil while callers may still take it
	place  *list.Element // in shell.idle; nil likewise
}

// mostUnclaimed bounds how many kernels wait for a caller that asks again: as many as
// an artefact cache holds by default (SPEC C1).
const mostUnclaimed = 1024

func (s *shell) linger(src Source) time.Duration {
	return max(0, cmp.Or(src.Linger, s.cfg.Linger))
}

// claim gives a caller the kernel of its source that nobody has taken, if there is
// one. A caller that has left meanwhile leaves it where it is.
func (s *shell) claim(c *compiling) bool {
	u, there := s.unclaimed[c.source.Key]
	if !there {
		return false
	}
	u.kernel.cell.Pin() // the flight's: c never flies
	c.Board()
	c.Finish(u.kernel, nil, (*Kernel).Release)
	if c.reply.Send(flight.Ticket[*Kernel]{Flight: &c.Flight}) {
		s.forgo(u.kernel)
	} else {
		c.GetOff()
	}
	return true
}

// settled is for a kernel that everybody who waited for it has taken or left. Where
// nobody took it, it waits for its linger time, as one of the last mostUnclaimed; over
// is the end of that.
func (s *shell) settled(k *Kernel, over bool) {
	u := s.unclaimed[k.source.Key]
	if u.kernel != k {
		return
	}
	if over || u.linger == 0 || k.taken.Load() {
		s.forgo(k)
		return
	}
	u.timer = time.AfterFunc(u.linger, func() { s.ref.Tell(settledMsg{k, true}) })
	u.place = s.idle.PushBack(k)
	s.unclaimed[k.source.Key] = u
	if s.idle.Len() > mostUnclaimed {
		s.forgo(s.idle.Front().Value.(*Kernel))
	}
}

// forgo lets go of a kernel that waited.
func (s *shell) forgo(k *Kernel) {
	if u := s.unclaimed[k.source.Key]; u.timer != nil {
		u.timer.Stop()
		s.idle.Remove(u.place)
	}
	delete(s.unclaimed, k.source.Key)
	k.Release()
}
