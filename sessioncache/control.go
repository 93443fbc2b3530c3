package sessioncache

import (
	"context"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

// Reset removes the names of one owner from every group, and nothing else; a
// Hold absorbs it. Creators that run for this owner are not disturbed, but what
// they make is not kept (SPEC F7).
func (s *Session) Reset(ctx context.Context, owner string) error {
	if owner == "" {
		return fault.Invalidf(room+"reset", "an empty owner: name one, or use ResetAll")
	}
	return s.reset(ctx, "reset", owner)
}

// ResetAll removes every group and name, and waits until what nobody uses is
// freed, however long that takes; ctx ends the waiting only. It heeds no Hold. Use
// counts that the policy remembers stay. ErrCycle, and nothing is changed: a Free of
// this session, or its Evicted, calls it, and would wait for itself.
func (s *Session) ResetAll(ctx context.Context) error {
	const op = "reset all"
	if s.published.frees.zone.Here() {
		return failed(op, "", fault.ErrCycle)
	}
	return s.reset(ctx, op, "")
}

func (s *Session) reset(ctx context.Context, op, owner string) error {
	var all []*group
	if owner == "" {
		all = s.published.all()
	}
	_, err := actors.Ask(ctx, s.actor, func(r actors.Reply[struct{}]) message { return reset{Reply: r, owner: owner, all: all} })
	return failed(op, owner, err)
}

// Hold makes one later Reset of the owner do nothing. Holds add up.
func (s *Session) Hold(owner string) error {
	if owner == "" {
		return fault.Invalidf(room+"hold", "an empty owner: name one")
	}
	if !s.send(hold{owner: owner}) || s.closed.Load() {
		return failed("hold", owner, errClosed)
	}
	return nil
}

// mostAnnounced is how many shapes a turn takes note of, and forgets.
const mostAnnounced = touched.Most / 4

// Announce tells which shapes the waiting requests need, soonest first, in place
// of what was announced before. Their groups stay while any other can go; those of the
// first 1,024 shapes, if there are more. ErrInvalid: one of them is no shape or cannot be
// bucketed; what was announced before stands.
func (s *Session) Announce(shapes ...shapegroups.Shape) error {
	const op = "announce"
	var soonest []shapegroups.Shape
	seen := make(map[shapegroups.Shape]struct{})
	for _, shape := range shapes {
		if shape.IsZero() {
			return noShape(op)
		}
		compiled, err := s.published.bucket.Map(shape)
		if err != nil {
			return failed(op, shape.String(), err)
		}
		if _, again := seen[compiled]; !again && len(seen) < mostAnnounced {
			seen[compiled] = struct{}{}
			soonest = append(soonest, compiled)
		}
	}
	if !s.send(announce{shapes: soonest}) || s.closed.Load() {
		return failed(op, "", errClosed)
	}
	return nil
}

// SetGroups changes the capacity in groups; lowering it evicts the surplus, by
// the policy, before it returns, and 0 disables caching. Until then what is there is
// the capacity; ctx ends the waiting only. ErrInvalid, and nothing is changed, if
// negative, not given or below the session's floor.
func (s *Session) SetGroups(ctx context.Context, groups Limit) error {
	return s.resize(ctx, "set groups", groups, Limit{})
}

// SetBytes changes the capacity in bytes, as SetGroups does that in groups.
func (s *Session) SetBytes(ctx context.Context, bytes Limit) error {
	return s.resize(ctx, "set bytes", Limit{}, bytes)
}

func (s *Session) resize(ctx context.Context, op string, groups, bytes Limit) error {
	if !groups.Given() && !bytes.Given() {
		return fault.Invalidf(room+op, "no capacity given: want a number or Unlimited")
	}
	_, err := actors.Ask(ctx, s.actor, func(r actors.Reply[struct{}]) message { return resize{Reply: r, groups: groups, bytes: bytes} })
	return failed(op, "", err)
}

// Capacity is what the session may hold.
func (s *Session) Capacity() Capacity { return s.published.capacity() }

// Groups is the number of shape groups. Groups, Len and Bytes are exact at any moment
// and wait for nothing. A group counts from the first request that needs it, also
// while its first value is being made.
func (s *Session) Groups() int64 { return s.published.groups.Load() }

// Len is the number of names in all groups. A name on two lanes counts twice.
func (s *Session) Len() int64 { return s.published.objects.Load() }

// Bytes is what the values of all groups were said to hold.
func (s *Session) Bytes() int64 { return s.published.bytes.Load() }

// Advice replays the last 8,192 calls of Session.Group with another policy and
// capacity, and gives the hits that there would have been (SPEC S5). Look-ups do not
// count: see Stream. It waits for no creator.
func (s *Session) Advice(ctx context.Context, kind string, groups int) (advice.Result, error) {
	const op = "advice"
	stream, err := s.stream(ctx, op)
	if err != nil {
		return advice.Result{}, err
	}
	r, err := advice.Simulate(stream.Compiled, advice.Setup{Policy: kind, Groups: groups})
	return r, failed(op, "", err)
}

// Stream is the shapes of the last 8,192 calls of Session.Group, as they were asked,
// oldest first: what package advice works on. Session.Lookup and Session.Set are
// requests for the policy and the thrash warning, but are not in the stream: a model
// run makes one of them for each name of the model.
func (s *Session) Stream(ctx context.Context) (stream []shapegroups.Shape, err error) {
	all, err := s.stream(ctx, "stream")
	return all.Asked, err
}

// stream asks for a part of the requests in a turn. Where so many came between two turns
// that some have gone which were to follow, those before them are left out.
func (s *Session) stream(ctx context.Context, op string) (all advice.Part, err error) {
	const most = touched.Most / 2
	for next := 0; ; {
		part, err := look(ctx, s, op, func(st *state) advice.Part {
			p := st.requests.acquired.Part(next, most)
			st.touched.Add(len(p.Asked))
			return p
		})
		if err != nil {
			return advice.Part{}, err
		}
		if all.Total == 0 {
			all.Total = part.Total // what comes later may be left out
		}
		if part.First != next {
			all.First, all.Asked, all.Compiled = part.First, nil, nil
		}
		all.Asked, all.Compiled = append(all.Asked, part.Asked...), append(all.Compiled, part.Compiled...)
		if next = part.First + len(part.Asked); next >= all.Total {
			return all, nil
		}
	}
}

// SavePolicy encodes what the policy has learnt, for Config.Saved. It is of one moment, so
// that nothing in it contradicts anything else, but holds nobody up: other calls are
// answered meanwhile. It takes time and memory in proportion to the shapes that the policy
// knows. Calls of it take place one after the other.
func (s *Session) SavePolicy(ctx context.Context) (saved []byte, err error) {
	of, err := actors.Ask(ctx, s.actor, func(r actors.Reply[*policy.Snapshot]) message { return save{Reply: r} })
	if err != nil {
		return nil, failed("save policy", "", err)
	}
	return of.Encode(), nil
}

// look gives what at gives in a turn, with all noted uses drained. The turn may come
// when the caller has left: then nobody looks at what it writes.
func look[T any](ctx context.Context, s *Session, op string, at func(*state) T) (T, error) {
	seen, none := new(T), *new(T)
	_, err := actors.Ask(ctx, s.actor, func(r actors.Reply[struct{}]) message {
		return looking{r, func(st *state) { *seen = at(st) }}
	})
	if err != nil {
		return none, failed(op, "", err)
	}
	return *seen, nil
}

// Close ends the session: callers that wait get their value or ErrClosed, creators
// are cancelled, and all groups go. Close waits until the creators have ended
// and until every value that nobody uses is freed; ctx ends the waiting only.
// Groups and leases that are open go on serving what they hold. A further call
// waits, too. Called by a creator or a Free of this session, its Evicted or the handler of its log, on the goroutine of that, or
// with the context of one of its creators, it does not wait for itself, but answers
// ErrCycle at once; the session ends all the same. It knows no other circle: Frees of two sessions that close each other
// wait until ctx ends.
func (s *Session) Close(ctx context.Context) error {
	s.close.Do(func() {
		s.closed.Store(true)
		s.unwatch()
		s.published.frees.lend(func() {
			guard.Call(s.shutDown, func(err error) {
				s.published.frees.logger.Error("session: closing", "session", s.name, "error", err)
			})
		})
	})
	if s.published.frees.zone.Here() || s.creators.Here() || flight.Inside(ctx, s) {
		return failed("close", s.name, fault.ErrCycle)
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return failed("close", s.name, guard.Ended(ctx))
	}
}

func (s *Session) shutDown() {
	defer close(s.done)
	drained, drain := context.WithCancel(context.Background())
	_, _ = actors.Ask(context.Background(), s.actor, func(r actors.Reply[struct{}]) message { return closing{r} })
	s.send(emptying{left: &clearing{all: s.published.all()}, drained: drain})
	<-drained.Done()

	s.sending.Lock()
	s.sending.shut = true
	s.sending.Unlock()
	_ = s.actor.Stop(context.Background()) // it waits for the end: there is no other outcome
	if s.member != nil {
		s.member.Leave()
	}

	freed, free := context.WithCancel(context.Background())
	s.published.frees.bin.Fence(func() { s.telling.Fence(func() { s.warning.Fence(free) }) })
	<-freed.Done()
}
