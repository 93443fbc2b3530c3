package flight

import "context"

// Creator is a flight as those see it that wait for what its creator holds, and not for
// its end: a right to build that one process has at a time. The zero Creator is no
// flight's.
type Creator struct{ n *node }

// CreatorOf gives the creator that runs under ctx.
func CreatorOf(ctx context.Context) Creator { return Creator{creatorOf(identityOf(ctx))} }

// Asker is the code that runs under a context, as it waits for a Creator.
type Asker struct{ id *identity }

// Creator gives the flight's own: its name among others, too.
func (f *Flight[V]) Creator() Creator { return Creator{&f.node} }

// Awaited gives a creator of those asked for that c waits for, through however many flights. A
// room asks it where flights wait for something else besides, such as a slot.
func (c Creator) Awaited(asked func(Creator) bool) (awaited Creator, ok bool) {
	path := c.n.pathTo(func(n *node) bool { return asked(Creator{n}) })
	if path == nil {
		return Creator{}, false
	}
	return Creator{path[len(path)-1]}, true
}

// AskerOf gives the code that runs under ctx.
func AskerOf(ctx context.Context) Asker { return Asker{identityOf(ctx)} }

// Await notes that a waits for c, until over is called. It reports false if that would close
// a circle (SPEC F5): then nothing is noted.
func (c Creator) Await(a Asker) (over func(), ok bool) {
	if c.n == nil || a.id == nil {
		return func() {}, true
	}
	if enter(a.id.nodes, c.n) != nil {
		return nil, false
	}
	return func() { exit(a.id.nodes, c.n) }, true
}
