package sessioncache

import (
	"context"
	"slices"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// join takes the session into a pool. Where others use what is to be its floor they are
// told, and nobody waits for them (SPEC F6).
func (s *Session) join(p *Pool, floor int64) error {
	if p == nil {
		return nil
	}
	member, err := p.shared.Join(floor, func(g pool.Gift) {
		if !s.send(give{gift: g}) {
			g.Answered()
		}
	})
	if err != nil {
		return err
	}
	s.member = member
	s.state.share = &share{member: &tenancy{member, s}}
	return nil
}

// tenancy is a session's membership of a pool.
type tenancy struct {
	*pool.Member
	session *Session
}

// claim has other sessions make room for what held is to publish. The session
// does not end before that was answered.
func (t *tenancy) claim(held any, bytes int64) bool {
	t.session.state.touched.Add(pool.MostAsked)
	return t.Claim(bytes, func(c *pool.Claim) { t.session.send(roomMade{held: held, claim: c}) }) != nil
}

// offer lists what the session could do without, for the memory limit of the
// process: of that the cheapest stands above the floor, as far as it goes. It asks for
// a part of the groups in a turn; a closed session offers nothing.
func (s *Session) offer(ctx context.Context) (items []pressure.Item) {
	for part := range slices.Chunk(s.published.all(), 2*pressure.Part) {
		some, _ := look(ctx, s, "offer", func(st *state) []pressure.Item { return st.offer(part) })
		items = append(items, some...)
	}
	slices.SortFunc(items, pressure.Cheaper)
	bytes, groups := s.published.bytes.Load(), s.published.groups.Load()
	for i := range items {
		bytes -= items[i].Bytes
		groups--
		if bytes < s.floor.Bytes || groups < s.floor.Groups {
			items[i].Tier = pressure.Floors
		}
	}
	return items
}

// shrink gives up groups that are not in use, by the policy, until at least n bytes
// are freed or nothing of that tier is left.
func (s *Session) shrink(ctx context.Context, n int64, tier pressure.Tier) (freed pressure.Freed) {
	turns := 0
	for more := true; more; {
		part, _ := actors.Ask(ctx, s.actor, func(r actors.Reply[shrunk]) message { return shrink{r, n - freed.Bytes, tier, &turns} })
		freed.Add(part.Freed)
		more = part.more
	}
	return freed
}
