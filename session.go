package kiln

import (
	"context"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Session is a sessioncache.Session whose names may stand for artefacts of the
// runtime's cache: many names, in any number of sessions, cost one artefact
// (SPEC G11). Safe for concurrent use.
type Session struct {
	*sessioncache.Session
	runtime *Runtime
	owner   string // of its artefacts, where a floor is to count them; else empty
	leave   func() // gives its floor among the artefacts back, once
}

// Source is the level that answered a lookup.
type Source struct {
	Event    sessioncache.Event // at the name
	Artefact artefacts.Outcome  // below it, of the call that made the name; zero for others
}

// Artefact gives the artefact of a name in a group. Where the name is absent it
// asks the artefact cache for r, and the name holds a lease on what that gives
// (SPEC C12). The value is good until h is closed. Errors are those of
// sessioncache.Group.Get and artefacts.Cache.Get.
func (s *Session) Artefact(ctx context.Context, h *sessioncache.Group, name string, o sessioncache.Options, r artefacts.Request) (sessioncache.Ref, Source, error) {
	if ref, ok := h.Lookup(name, o.Lane); ok {
		return ref, Source{Event: sessioncache.Hit}, nil
	}
	if r.Owner == "" {
		r.Owner = s.owner
	}
	var from Source
	outcome := make(chan artefacts.Outcome, 1) // the creator may outlive this call
	ref, event, err := h.Get(ctx, name, o, func(ctx context.Context) (sessioncache.Value, error) {
		lease, how, err := s.runtime.artefacts.Get(ctx, r)
		if err != nil {
			return sessioncache.Value{}, err
		}
		outcome <- how
		return sessioncache.Value{Any: lease.Value(), Bytes: lease.Bytes(), Cost: lease.Cost(), Free: lease.End, Leased: true}, nil
	})
	from.Event = event
	if event == sessioncache.Miss && err == nil {
		from.Artefact = <-outcome
	}
	return ref, from, err
}

// Close ends the session, as sessioncache.Session.Close does.
func (s *Session) Close(ctx context.Context) error {
	s.runtime.mu.Lock()
	delete(s.runtime.mu.sessions, s)
	s.runtime.mu.Unlock()
	s.leave()
	return s.Session.Close(ctx)
}
