package stress

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// BenchmarkSizes is what a step costs by the size of the room: flat, or a logarithm. The
// metric touched is the most that one turn of the room touched in the steps and in what
// was done before them. docs/figures.md has the figures.
func BenchmarkSizes(b *testing.B) {
	for _, row := range []struct {
		name  string
		most  int
		bench func(*testing.B, int)
	}{
		{"session/miss with eviction", 1e5, sessionMiss},
		{"session/miss among groups in use", 1e5, sessionBusy},
		{"session/Reset of one name", 1e5, sessionReset},
		{"session/Intern", 1e5, sessionIntern},
		{"session/a leaver", 1e5, sessionLeaver},
		{"session/gift beside groups of no bytes", 1e5, sessionGift},
		{"session/an interned name more of one group", 1e5, sessionSlots},
		{"artefacts/miss with eviction", 1e6, artefactsMiss},
		{"artefacts/miss with eviction by tenants", 1e5, artefactsTenants},
		{"artefacts/Reset of one entry", 1e6, artefactsReset},
		{"artefacts/an owner more of a shared one", 1e5, artefactsOwners},
		{"artefacts/surplus beside floors alone", 1e5, artefactsSurplus},
		{"artefacts/a floor that is given back", 1e5, artefactsFloors},
		{"constants/full miss that displaces", 1e5, func(b *testing.B, n int) { constantsFull(b, n, 3*time.Second) }},
		{"constants/full miss that does not", 1e5, func(b *testing.B, n int) { constantsFull(b, n, time.Microsecond) }},
	} {
		for n := 100; n <= row.most; n *= 10 {
			b.Run(fmt.Sprintf("%s/%d", row.name, n), func(b *testing.B) { row.bench(b, n) })
		}
	}
}

func ok(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// sizedSession is a full session of n groups; owner has a name in each.
func sizedSession(b *testing.B, n int, owner string) (s *sessioncache.Session, set func(i int, name, owner string)) {
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.LimitOf(int64(n))})
	ok(b, err)
	b.Cleanup(func() {
		b.ReportMetric(float64(s.Stats().Touched), "touched")
		ok(b, s.Close(context.Background()))
	})
	set = func(i int, name, owner string) {
		ok(b, s.Set(context.Background(), sized(b, i), name, sessioncache.Value{Bytes: 1}, sessioncache.Options{Owner: owner}))
	}
	for i := range n {
		set(i, "name", owner)
	}
	return s, set
}

func sized(b *testing.B, i int) shapegroups.Shape {
	shape, err := shapegroups.N(int64(i))
	ok(b, err)
	return shape
}

func sessionMiss(b *testing.B, n int) {
	_, set := sizedSession(b, n, "")
	for i := n; b.Loop(); i++ {
		set(i, "name", "")
	}
}

func sessionBusy(b *testing.B, n int) {
	s, set := sizedSession(b, n, "")
	for i := range n - 1 {
		g, err := s.Group(context.Background(), sized(b, i))
		ok(b, err)
		defer g.Close()
	}
	set(n, "name", "") // passes over them
	for i := n + 1; b.Loop(); i++ {
		set(i, "name", "")
	}
}

func sessionReset(b *testing.B, n int) {
	s, set := sizedSession(b, n, "other")
	for i := 0; b.Loop(); i++ {
		set(i%n, "second", "owner")
		ok(b, s.Reset(context.Background(), "owner"))
	}
}

func sessionIntern(b *testing.B, n int) {
	s, _ := sizedSession(b, n, "")
	s.Intern("name") // which all have
	for i := 0; b.Loop(); i++ {
		s.Intern(fmt.Sprint("new ", i))
	}
}

// sessionGift has n groups that hold nothing, and one that has to go for another session.
func sessionGift(b *testing.B, n int) {
	ctx := context.Background()
	p, err := sessioncache.NewPool(sessioncache.LimitOf(4))
	ok(b, err)
	var both [2]*sessioncache.Session
	for i := range both {
		both[i], err = sessioncache.Open(sessioncache.Config{Pool: p, Groups: sessioncache.Unlimited})
		ok(b, err)
	}
	rich, poor := both[0], both[1]
	b.Cleanup(func() {
		b.ReportMetric(float64(rich.Stats().Touched), "touched")
		ok(b, rich.Close(ctx))
		ok(b, poor.Close(ctx))
	})
	set := func(s *sessioncache.Session, i int, bytes int64) {
		ok(b, s.Set(ctx, sized(b, i), "name", sessioncache.Value{Bytes: bytes}, sessioncache.Options{}))
	}
	for i := range n {
		set(rich, i, 0)
	}
	for b.Loop() {
		set(rich, n, 4)
		if set(poor, 0, 3); rich.Bytes() != 0 {
			b.Fatal("nothing is given")
		}
		ok(b, poor.ResetAll(ctx))
	}
}

// sessionSlots has one group of n interned names, and each time one more.
func sessionSlots(b *testing.B, n int) {
	s, _ := sizedSession(b, 1, "")
	more := func(i int) {
		ok(b, s.Set(context.Background(), sized(b, 0), s.Intern(fmt.Sprint("new ", i)).String(), sessioncache.Value{}, sessioncache.Options{}))
	}
	for i := range n {
		more(i)
	}
	for i := n; b.Loop(); i++ {
		more(i)
	}
}

// sessionLeaver has n callers that wait for one name, and one more that comes and goes.
func sessionLeaver(b *testing.B, n int) {
	s, _ := sizedSession(b, 1, "")
	g, err := s.Group(context.Background(), sized(b, 0))
	ok(b, err)
	end := make(chan struct{})
	wait := func(ctx context.Context) error {
		_, _, err := g.Get(ctx, "slow", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			<-end
			return sessioncache.Value{}, nil
		})
		return err
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() { _ = wait(context.Background()) })
	}
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(0, cancel)
		_ = wait(ctx)
	}
	close(end)
	all.Wait()
	g.Close()
}

func sizedArtefacts(b *testing.B, n int) (c *artefacts.Cache, get func(i int, owner string)) {
	c, err := artefacts.Open(artefacts.Config{Entries: limit.Of(int64(n)), Bytes: limit.Unlimited})
	ok(b, err)
	b.Cleanup(func() {
		b.ReportMetric(float64(c.Stats().Touched), "touched")
		ok(b, c.Close(context.Background()))
	})
	return c, func(i int, owner string) {
		l, _, err := c.Get(context.Background(), artefacts.Request{Key: fmt.Sprint(i), Owner: owner, Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: i, Bytes: 1}, nil
		}})
		ok(b, err)
		l.End()
	}
}

func artefactsMiss(b *testing.B, n int) {
	_, get := sizedArtefacts(b, n)
	for i := range n {
		get(i, "")
	}
	for i := n; b.Loop(); i++ {
		get(i, "")
	}
}

// artefactsTenants has n tenants with a floor of one byte, which hold one entry each.
func artefactsTenants(b *testing.B, n int) {
	c, get := sizedArtefacts(b, n+n/2)
	for i := range n {
		owner := fmt.Sprint("tenant ", i)
		ok(b, c.AddFloor(owner, 1))
		get(i, owner)
	}
	for i := n; i < 2*n; i++ {
		get(i, fmt.Sprint("tenant ", i%n))
	}
	for i := 2 * n; b.Loop(); i++ {
		get(i, fmt.Sprint("tenant ", i%n))
	}
}

func artefactsReset(b *testing.B, n int) {
	c, get := sizedArtefacts(b, n)
	for i := range n {
		get(i, "other")
	}
	for i := n; b.Loop(); i++ {
		get(i, "owner")
		ok(b, c.Reset("owner"))
	}
}

// artefactsFloors has n tenants with floors, which came to use what they use in turns, and one of
// which has none for a moment.
func artefactsFloors(b *testing.B, n int) {
	c, get := sizedArtefacts(b, 4*n)
	tenant := func(i int) string { return fmt.Sprint("tenant ", i%n) }
	for i := range n {
		ok(b, c.AddFloor(tenant(i), 1))
	}
	for i := range 4 * n {
		get(i, tenant(i))
	}
	for i := 0; b.Loop(); i++ {
		ok(b, c.AddFloor(tenant(i), -1))
		ok(b, c.Reset("nobody")) // turns after that
		ok(b, c.AddFloor(tenant(i), 1))
	}
}

// artefactsOwners has n owners of one artefact, and one more that comes and goes.
func artefactsOwners(b *testing.B, n int) {
	c, get := sizedArtefacts(b, n)
	for i := range n {
		get(0, fmt.Sprint("owner ", i))
	}
	for i := n; b.Loop(); i++ {
		get(0, fmt.Sprint("owner ", i))
		ok(b, c.Reset(fmt.Sprint("owner ", i)))
	}
}

// artefactsSurplus has n tenants that hold an entry each by their floors, of which one has
// to go at a time.
func artefactsSurplus(b *testing.B, n int) {
	c, get := sizedArtefacts(b, n+1)
	for i := range n {
		owner := fmt.Sprint("tenant ", i)
		ok(b, c.AddFloor(owner, 8))
		get(i, owner)
	}
	for i := 0; b.Loop(); i++ {
		ok(b, c.SetCapacity(limit.Of(int64(n-1)), limit.Limit{}))
		ok(b, c.SetCapacity(limit.Of(int64(n+1)), limit.Limit{}))
		get(i%n, fmt.Sprint("tenant ", i%n))
	}
}

// constantsFull has n tensors of one second each that fill the capacity, and asks for
// more of the cost given.
func constantsFull(b *testing.B, n int, cost time.Duration) {
	const capacity = 100 // MiB
	c, err := constants.Open(constants.Config{Capacity: [2]limit.Limit{constants.CPU: limit.Of(capacity)}, Policy: [2]constants.Policy{constants.CPU: constants.Cost}})
	ok(b, err)
	b.Cleanup(func() { ok(b, c.Close(context.Background())) })
	e, err := c.Engine(constants.CPU, 0, "")
	ok(b, err)
	bytes := int64(capacity << 20 / n)
	add := func(i int, cost time.Duration) {
		out, err := e.GetOrAdd(context.Background(), constants.Key{ID: constants.Versioned(fmt.Sprint(i), 0)}, bytes, constants.Options{Cost: cost})
		ok(b, err)
		if out.Owner != nil {
			l, err := out.Owner.Fulfil(i, bytes, nil)
			ok(b, err)
			l.End()
		}
	}
	for i := range n {
		add(i, time.Second)
	}
	for i := n; b.Loop(); i++ {
		add(i, cost)
	}
	b.ReportMetric(float64(c.Stats().Touched), "touched")
}
