package actors_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/actors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

// counter is a room as small as one can be: its state lives outside the actor.
type counter struct {
	ref   *actors.Ref[request]
	total int // the actor's
	held  chan struct{}
	seen  chan int // if set, told of every add
}

// request is the counter's one message: what is set says what is asked.
type request struct {
	add   int
	block chan struct{} // the turn waits for it
	boom  any           // the turn panics with it
	reply actors.Reply[int]
}

func (m request) Fail(err error) { m.reply.Fail(err) }

func (c *counter) handle(m request) {
	if m.block != nil {
		if c.held != nil {
			c.held <- struct{}{}
		}
		<-m.block
	}
	if m.boom != nil {
		panic(m.boom)
	}
	c.total += m.add
	if c.seen != nil {
		c.seen <- m.add
	}
	m.reply.Send(c.total)
}

func spawn(t testing.TB, cfg actors.Config) *counter {
	c := &counter{}
	c.ref = actors.Spawn(cfg, c.handle)
	t.Cleanup(func() {
		if err := c.ref.Stop(background); err != nil {
			t.Error(err)
		}
	})
	return c
}

func (c *counter) ask(ctx context.Context, m request) (int, error) {
	return actors.Ask(ctx, c.ref, func(r actors.Reply[int]) request {
		m.reply = r
		return m
	})
}

// hold has the actor's next turn wait until release is called.
func (c *counter) hold(t testing.TB) (release func()) {
	t.Helper()
	block := make(chan struct{})
	c.held = make(chan struct{})
	if !c.ref.Tell(request{block: block}) {
		t.Fatal("the actor has stopped")
	}
	<-c.held
	c.held = nil // read again only after block is closed
	return func() { close(block) }
}

// eventually polls, for what has no channel to wait for.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
