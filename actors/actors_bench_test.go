package actors_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/kiln-cache/kiln/actors"
)

// channelAsk is the same round trip between two goroutines without any actor.
type channelAsk struct{ requests chan chan int }

func (c channelAsk) serve() {
	total := 0
	for reply := range c.requests {
		total++
		reply <- total
	}
}

// BenchmarkAsk measures a request and its answer in three ways, in turn within
// one run, and reports ours and the library's future against a bare channel's.
func BenchmarkAsk(b *testing.B) {
	c := &counter{}
	c.ref = actors.Spawn(actors.Config{}, c.handle)
	defer c.ref.Stop(background)
	plain := channelAsk{make(chan chan int)}
	go plain.serve()
	defer close(plain.requests)
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	pid := system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if _, ok := ctx.Message().(int); ok {
			ctx.Respond(1)
		}
	}))
	defer system.Root.Stop(pid)

	ours := func() {
		if _, err := c.ask(background, request{add: 1}); err != nil {
			b.Fatal(err)
		}
	}
	channel := func() {
		reply := make(chan int, 1)
		plain.requests <- reply
		<-reply
	}
	future := func() {
		if _, err := system.Root.RequestFuture(pid, 1, time.Minute).Result(); err != nil {
			b.Fatal(err)
		}
	}
	const slice = 200 // of one way before the next, so that all see the same machine
	var took [3]time.Duration
	b.ReportAllocs()
	for b.Loop() {
		for i, ask := range []func(){ours, channel, future} {
			began := time.Now()
			for range slice {
				ask()
			}
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N*slice), "ns/ask")
	b.ReportMetric(float64(took[0])/float64(took[1]), "ask/channel")
	b.ReportMetric(float64(took[2])/float64(took[0]), "future/ask")
}

// BenchmarkAskAllocations is Ask alone, for its allocations.
func BenchmarkAskAllocations(b *testing.B) {
	c := &counter{}
	c.ref = actors.Spawn(actors.Config{}, c.handle)
	defer c.ref.Stop(background)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.ask(background, request{add: 1}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTell is a message that nobody waits for.
func BenchmarkTell(b *testing.B) {
	ref := actors.Spawn(actors.Config{}, func(int) {})
	defer ref.Stop(background)
	b.ReportAllocs()
	for b.Loop() {
		ref.Tell(1)
	}
}
