package constants

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// inTurn is what a turn of an engine does.
type inTurn func(*shell)

func (inTurn) isMessage()        {}
func (m inTurn) handle(s *shell) { m(s) }

// C13, F1: a reader that has found a tensor, and pins it when it has been evicted, gets no lease on it: the
// turn that evicted it saw no lease, and so others do not find it by its key.
func TestLookupOfWhatIsEvictedMeanwhile(t *testing.T) {
	_, e := open(t, Config{})
	put(t, e, "k", 1, Options{}, nil)
	n := e.shell.state.table.Lookup(key("k").ID, key("k").Backend) // as the reader has
	n.Value.gone.Store(true)
	pins := n.Value.cell.Pins()
	if _, found := e.Lookup(key("k")); found || n.Value.cell.Pins() != pins {
		t.Errorf("found %v, with %d pins, %d before", found, n.Value.cell.Pins(), pins)
	}
	n.Value.gone.Store(false)
	if l, found := e.Lookup(key("k")); !found {
		t.Error("not found where it is resident")
	} else {
		l.End()
	}
}

// whileAsked is a context whose owner does something while it is asked.
type whileAsked struct {
	context.Context
	do func()
}

func (c *whileAsked) Done() <-chan struct{} { return left }

func (c *whileAsked) Err() error { return nil }

func (c *whileAsked) Value(any) any {
	if do := c.do; do != nil {
		c.do = nil
		do()
	}
	return nil
}

var left = make(chan struct{})

// F10: where there was no device memory the turn that ends the ownership knows it, be it
// at once: the next run is one after a refusal, not after a failure.
func TestRefusalIsKnownAtTheEnd(t *testing.T) {
	asked := &whileAsked{Context: context.Background()}
	var e *Engine
	refuse := true
	c, e := open(t, Config{Reserve: func(Kind, int, int64) (func(), error) {
		if !refuse {
			return nil, nil
		}
		asked.do = func() { // when the ownership has ended, and before GetOrAdd goes on
			if _, err := e.Remove(context.Background(), key("other")); err != nil {
				t.Error(err)
			}
		}
		return nil, errors.New("no memory")
	}})
	if out, err := e.GetOrAdd(asked, key("k"), 1, Options{}); err != nil || out.Bypass != DeviceRefused {
		t.Fatalf("%+v, %v", out, err)
	}
	if asked.do != nil {
		t.Error("the context was not asked at the end")
	}
	refuse = false
	put(t, e, "k", 1, Options{}, nil)
	wantAgain(t, c, map[string]uint64{"refused": 1})
}

// F8: an owner that gives up when its engine has begun to close, and has not come to it yet, has no heir:
// those that wait are told of the close.
func TestNoHeirInAClosedEngine(t *testing.T) {
	_, e := open(t, Config{})
	o := add(t, e, "k", 1, Options{})
	type answer struct {
		out Outcome
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		out, err := e.GetOrAdd(context.Background(), key("k"), 1, Options{CanOwn: true})
		answered <- answer{out, err}
	}()
	waitFor(t, func() bool { return waiting(o) == 1 })
	o.finish()
	e.tell(inTurn(func(s *shell) {
		s.closed.Store(true)
		s.end(o, o.failure(fault.ErrAbandoned))
	}))
	a := <-answered
	if !errors.Is(a.err, fault.ErrClosed) || a.out.Owner != nil {
		t.Errorf("the one that waits gets %+v, %v", a.out, a.err)
	}
	a.out.giveBack()
	if err := e.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

// giveBack ends what nobody will use.
func (o Outcome) giveBack() {
	if o.Lease != nil {
		o.Lease.End()
	}
	if o.Owner != nil {
		o.Owner.Abandon()
	}
}
