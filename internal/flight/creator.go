package flight

import "context"

// Creator is a flight as those see it that wait for what its creator holds, and not for
// its end: a right to build that one process has at a time. The zero Creator is no
// flight's.
type Creator struct{ n *node }

// CreatorOf gives the creator that runs under ctx.
func CreatorOf(ctx context.Context) Creator { return Creator{creatorOf(identityOf(ctx))} }

// Await notes that the code under ctx waits for c, until over is called. It reports false
// if that would close a circle (SPEC F5): then nothing is noted.
func (c Creator) Await(ctx context.Context) (over func(), ok bool) {
	id := identityOf(ctx)
	if c.n == nil || id == nil {
		return func() {}, true
	}
	if !enter(*id, c.n) {
		return nil, false
	}
	return func() { exit(*id, c.n) }, true
}
