package artefacts

import (
	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
)

// sweep is what is linear in the cache. It takes as many turns as it needs, with other
// messages between them, and begins when the sweeps before it have ended.
type sweep interface {
	// step does what one turn may and reports whether that was the last.
	step(s *shell) (over bool, err error)
	// end answers whoever waits for it.
	end(err error)
}

// sweeping goes on with the first sweep.
type sweeping struct{}

// ordered is a sweep that somebody waits for. Its answer counts once.
type ordered struct{ reply actors.Reply[struct{}] }

func (o ordered) Fail(err error) { o.reply.Fail(err) }
func (o ordered) end(err error)  { o.reply.Answer(struct{}{}, err) }

func (s *shell) sweep(w sweep) {
	if s.sweeps = append(s.sweeps, w); len(s.sweeps) == 1 {
		sweeping{}.handle(s)
	}
}

func (sweeping) handle(s *shell) {
	for s.state.touched.Left() {
		s.state.touched.Add(1) // it may find nothing to do, as all that wait behind it
		over, err := s.sweeps[0].step(s)
		if !over {
			break
		}
		s.publishCapacity()
		s.clean() // so that leases alone hold what fell out, and the last of them frees it
		s.sweeps[0].end(err)
		s.sweeps[0] = nil
		if s.sweeps = s.sweeps[1:]; len(s.sweeps) == 0 {
			return
		}
	}
	s.ref.Tell(sweeping{})
}

func (m *resize) step(s *shell) (over bool, err error) {
	if s.state.closed {
		return true, fault.ErrClosed
	}
	if !m.set {
		if err := s.floors.resize(m.bytes); err != nil {
			return true, err
		}
		s.state.resize(m.entries, m.bytes)
		m.set = true
	}
	return s.state.trim(), nil
}

// What was cleared by a close needs no release.
func (m *dropOwner) step(s *shell) (over bool, err error) {
	if s.state.closed {
		return true, fault.ErrClosed
	}
	return s.state.release(m.owner, m.uses), nil
}

// A close goes on with it: what is in no tenant's order would not be cleared.
func (m *addFloor) step(s *shell) (over bool, err error) {
	if m.leaving == nil {
		m.leaving = s.state.leave(m.owner)
	}
	return m.leaving == nil || s.state.forget(m.leaving), nil
}

func (*addFloor) end(error) {}

// emptying is the sweep of a close.
type emptying struct{}

func (emptying) step(s *shell) (over bool, err error) {
	return s.endFlights() && s.state.empty(), nil
}
func (emptying) end(error) {}

// unlisting goes on with what unlist left; a close ends it.
type unlisting struct{ s *shell }

func (u unlisting) step(s *shell) (over bool, err error) {
	return s.state.closed || s.state.unlistMore(), nil
}
func (u unlisting) end(error) { u.s.unlisting = false }

func (s *shell) unlist() {
	if len(s.state.unlisted) > 0 && !s.unlisting && !s.state.closed {
		s.unlisting = true
		s.sweep(unlisting{s})
	}
}
