package sessioncache

import (
	"context"
	"fmt"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// join takes the session into a pool. Where others use what is to be its floor
// it waits for one turn of each of them, in which they give that up.
func (s *Session) join(p *Pool, floor int64) error {
	if p == nil {
		return nil
	}
	given := make(chan struct{})
	member, claim, err := p.shared.Join(floor, func(g pool.Gift) {
		if !s.send(give{g}) {
			g.Answered()
		}
	}, func(*pool.Claim) { close(given) })
	if err != nil {
		return err
	}
	if claim != nil {
		<-given
		if !claim.Accept() {
			member.Leave()
			return fmt.Errorf("%w: the floor's %d bytes are in use, and those who use them gave up too few: end leases, or try again", fault.ErrTooLarge, floor)
		}
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
	return t.Claim(bytes, func(c *pool.Claim) { t.session.send(roomMade{held: held, claim: c}) }) != nil
}

// offer lists what the session could do without, for the memory limit of the
// process. It waits for one turn; a closed session offers nothing.
func (s *Session) offer(ctx context.Context) []pressure.Item {
	items, _ := look(ctx, s, "offer", (*state).offer)
	return items
}

// shrink gives up groups that are not in use, by the policy, until at least n bytes
// are freed or nothing of that tier is left.
func (s *Session) shrink(ctx context.Context, n int64, tier pressure.Tier) pressure.Freed {
	freed, _ := actors.Ask(ctx, s.actor, func(r actors.Reply[pressure.Freed]) message { return shrink{r, n, tier} })
	return freed
}
