package flight

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Flight is one computation of a V and the callers that wait for it. Make it with
// New, or Begin a zero one that is part of something larger.
//
// Finish, Refer and Linger are called by the room, one at a time: in its turns or
// under its mutex. The rest is safe for concurrent use.
type Flight[V any] struct {
	node node
	life life          // the creator's context
	done chan struct{} // closed by Finish or Refer, after what follows is set

	value   V
	err     error
	release func(V)
	next    *Flight[V] // the caller goes on with that one
	late    bool       // whose creator was cancelled before

	aboard   atomic.Int32 // callers, and the creator until the end
	finished atomic.Bool
	starting atomic.Bool // the edges of Start wait for their caller
	changed  bool        // the caller has gone over to next
	timer    *time.Timer // of Linger; the room's
}

// New makes a flight on behalf of ctx: its values are kept, its cancellation and
// deadline are not, since others may wait when that caller has gone. Nobody is
// aboard yet. scope and key name what is computed, for Within and for errors.
// It calls ctx.Value, which may be user code: not in a turn.
func New[V any](ctx context.Context, scope any, key string) *Flight[V] {
	f := new(Flight[V])
	f.Begin(ctx, scope, key)
	return f
}

// Begin is New in place.
func (f *Flight[V]) Begin(ctx context.Context, scope any, key string) {
	f.done = make(chan struct{})
	f.node.scope, f.node.key = scope, key
	id := identityOf(ctx)
	f.node.begin(id)
	f.life.begin(ctx, &f.node, id)
	f.aboard.Store(1)
}

// Context is for the creator. It carries the flight's identity and ends with
// Cancel and with the flight.
func (f *Flight[V]) Context() context.Context { return &f.life }

// Start takes the caller aboard on whose behalf the flight was made, before any
// other. A creator counts as waiting from here on, so that of a circle it is
// always the wait for an older flight that is answered with ErrCycle.
func (f *Flight[V]) Start() {
	f.Board()
	if f.node.parent != nil {
		f.starting.Store(true)
		oblige(f.node.parent, f.life.id.nodes)
	}
}

// Board takes another caller aboard, which Ride or GetOff takes off again. The
// room calls it while the flight is on its desk, so that it has not ended.
func (f *Flight[V]) Board() { f.aboard.Add(1) }

// GetOff is for a caller that is aboard and will not come to ride.
func (f *Flight[V]) GetOff() { f.getOff(f.started(f.node.parent)) }

// getOff takes a caller and its edges off; the last one lets go of the value.
func (f *Flight[V]) getOff(edges []*node) {
	exit(edges, &f.node)
	if f.aboard.Add(-1) > 0 {
		return
	}
	switch {
	case f.next != nil:
		if !f.changed {
			f.next.GetOff()
		}
	case f.err == nil && f.release != nil:
		f.release(f.value)
	}
}

// ride waits for the end on behalf of a caller that is aboard, and takes it off.
// ended says that the error is the flight's own, not the caller's; late, that the
// caller came after the creator was cancelled. The error errCalled is as good as the
// flight's.
func (f *Flight[V]) ride(ctx context.Context, c taker[V], call <-chan struct{}) (ended, late bool, err error) {
	var edges []*node
	entered, off := false, false
	defer func() { // also where the caller's context panics
		switch {
		case off:
		case entered:
			f.getOff(edges)
		default:
			f.GetOff()
		}
	}()
	waits := !f.Finished()
	if waits {
		edges, err = f.enter(ctx)
	} else { // an ended flight is no edge
		edges = f.started(f.node.parent)
	}
	entered = true
	if waits && err == nil {
		err = f.await(ctx, call)
	}
	if err == nil && f.next != nil {
		f.changed, off = true, true
		f.getOff(edges)
		ended, _, err = f.next.ride(ctx, c, call)
		return ended, f.late, err
	}
	if err != nil {
		return err == errCalled, false, err
	}
	if f.err == nil {
		c.Take(f.value)
	}
	return true, false, f.err
}

// enter gives the nodes that have an edge to the flight while its caller waits.
func (f *Flight[V]) enter(ctx context.Context) (edges []*node, err error) {
	from := identityOf(ctx)
	if from == nil {
		return nil, nil
	}
	if edges = f.started(from.nodes); edges != nil {
		return edges, nil
	}
	if circle := enter(from.nodes, &f.node); circle != nil {
		return nil, &fault.Error{Op: "wait", Key: f.node.key,
			Err: fmt.Errorf("%w: %s: a creator must not ask for what waits for it", fault.ErrCycle, told(circle))}
	}
	return from.nodes, nil
}

// await waits for the end, the call or the end of ctx.
func (f *Flight[V]) await(ctx context.Context, call <-chan struct{}) error {
	if call == nil && ctx.Done() == nil { // a receive costs half of a select
		<-f.done
		return nil
	}
	select {
	case <-f.done:
		return nil
	case <-call:
		return errCalled
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

// started gives from if the edges of Start are its and nobody waits by them yet:
// they are the caller's then.
func (f *Flight[V]) started(from []*node) []*node {
	if len(from) == 0 || len(from) != len(f.node.parent) || &from[0] != &f.node.parent[0] {
		return nil
	}
	if !f.starting.CompareAndSwap(true, false) {
		return nil
	}
	return from
}

// Finish ends the flight with the creator's result and wakes all who wait.
// release, if not nil, is called once with the value when the last of them has
// taken it: perhaps in here. Later calls do nothing and report false.
func (f *Flight[V]) Finish(value V, err error, release func(V)) bool {
	if !f.finished.CompareAndSwap(false, true) {
		return false
	}
	f.value, f.err, f.release = value, err, release
	f.end()
	return true
}

// Settle tells that the creator has returned: it waits for nothing any more. Its goroutine
// calls it, so that Finish, in a turn, need not look at all that the creator has asked for
// and not waited for.
func (f *Flight[V]) Settle() { f.node.settle() }

// Refer ends a flight that its one caller brought and that never flew: the caller
// goes on aboard next, where the room has seated it. late is that of Desk.Join.
func (f *Flight[V]) Refer(next *Flight[V], late bool) {
	if !f.finished.CompareAndSwap(false, true) {
		return
	}
	next.Board()
	f.next, f.late = next, late
	f.end()
}

// Follow is for a flight without a creator: who waits for it waits for next, and no
// longer for last, if that is not nil. It looks for no circle: the creator of next has
// not begun, so that a circle is closed by a later wait.
func (f *Flight[V]) Follow(next, last *Flight[V]) {
	oblige(f.life.id.nodes, next.life.id.nodes)
	if last != nil {
		exit(f.life.id.nodes, &last.node)
	}
}

// HasEdges reports whether anybody with an identity waits for the flight, or for what it owns.
// For tests.
func (f *Flight[V]) HasEdges() bool { return f.node.isAwaited() }

func (f *Flight[V]) end() {
	f.node.settled()
	f.node.end()
	if f.timer != nil {
		f.timer.Stop()
	}
	close(f.done)
	f.life.end()
	f.getOff(nil)
}

// Cancel ends the creator's context; callers aboard go on waiting for Finish.
func (f *Flight[V]) Cancel() { f.life.end() }

// Linger does what Desk.Leave asks for when nobody is aboard any more: it cancels
// the creator, or, after the linger time, calls expired on a goroutine of its own,
// which is to have the room ask Desk.Expire.
func (f *Flight[V]) Linger(wait time.Duration, expired func()) {
	if wait <= 0 {
		f.Cancel()
		return
	}
	if f.timer != nil {
		f.timer.Stop()
	}
	f.timer = time.AfterFunc(wait, expired)
}

// Aboard is how many callers are aboard, those included that their room does not
// know to have left.
func (f *Flight[V]) Aboard() int {
	n := int(f.aboard.Load())
	if !f.finished.Load() {
		n-- // the creator
	}
	return n
}

// Done is closed at the end.
func (f *Flight[V]) Done() <-chan struct{} { return f.done }

// Finished reports whether the flight has ended.
func (f *Flight[V]) Finished() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Own ties the flight to the code that runs under ctx and has promised to finish
// it (an owner of a constant, SPEC T3): a caller that waits for the flight waits
// for the flights of ctx, too, and for whatever that code asks for under the context
// returned. That code has one node for all that it owns, so it costs the same however
// much that is.
func (f *Flight[V]) Own(ctx context.Context) context.Context {
	id := identityOf(ctx)
	if id == nil {
		id = new(identity)
	}
	if n := len(id.nodes); n == 0 || !id.nodes[n-1].owner {
		id = &identity{append(id.nodes[:n:n], &node{owner: true}), id.marks}
	}
	oblige(f.life.id.nodes, id.nodes)
	return context.WithValue(ctx, identityKey{}, id) // also where ctx has it: to be found at once
}
