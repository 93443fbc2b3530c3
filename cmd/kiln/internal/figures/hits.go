package figures

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/policy"
)

// The size of the read benchmarks: 16,384 names.
const (
	groups  = 32
	names   = 512
	session = "bench-session-00"
)

// fullKey is the key of the peer S.
type fullKey struct{ session, shape, name string }

// loaded is a filled session and its peer. What is asked for are copies of the
// stored strings, as a request's would be; asked is in Zipf's distribution.
type loaded struct {
	session *sessioncache.Session
	shapes  []shapegroups.Shape
	handles []sessioncache.View
	names   []string
	ids     []sessioncache.NameID
	refs    []sessioncache.Ref
	peer    *sync.Map
	keys    []fullKey
	asked   []int // places of keys
}

func load(ctx context.Context) (*loaded, error) {
	s, err := sessioncache.Open(sessioncache.Config{Name: session, Groups: sessioncache.LimitOf(groups)})
	if err != nil {
		return nil, err
	}
	l := &loaded{session: s, peer: new(sync.Map)}
	for i := range names {
		l.names = append(l.names, nameOf(i))
		l.ids = append(l.ids, s.Intern(nameOf(i)))
	}
	for g := range groups {
		if err := l.fill(ctx, g); err != nil {
			return nil, err
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, uint64(len(l.keys)-1))
	places := random.Perm(len(l.keys))
	for range 1 << 14 {
		l.asked = append(l.asked, places[zipf.Uint64()])
	}
	return l, nil
}

// nameOf has about the length of a real operation's name. It makes a new string
// each time.
func nameOf(i int) string {
	return fmt.Sprintf("bert/encoder/layer.%02d/attention/matmul.%03d", i/43, i)
}

func shapeOf(g int) shapegroups.Shape {
	s, err := shapegroups.Of([]int64{8, int64(128 + g)})
	if err != nil {
		panic(err) // a constant shape
	}
	return s
}

func (l *loaded) fill(ctx context.Context, g int) error {
	shape := shapeOf(g)
	l.shapes = append(l.shapes, shapeOf(g))
	for i := range names {
		if err := l.session.Set(ctx, shape, nameOf(i), sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			return err
		}
		l.fillPeer(g, i)
		l.keys = append(l.keys, fullKey{string([]byte(session)), l.shapes[g].Key(), l.names[i]})
		ref, _ := l.session.Lookup(shape, nameOf(i), 0)
		l.refs = append(l.refs, ref)
	}
	handle, _ := l.session.View(shape)
	l.handles = append(l.handles, handle)
	return nil
}

// finder asks for places one after the other and gives how many it missed. Its
// loop is its own: a call for each place would cost as much as the quickest path.
type finder func(places []int) (missed int)

// reads is a side that asks for n places, from a goroutine's own start on. Every
// slice goes on where the last one ended.
func (l *loaded) reads(goroutine int, find finder) side {
	at := goroutine * len(l.asked) / 2
	return func(n int) (time.Duration, error) {
		missed := 0
		began := time.Now()
		for left := n; left > 0; {
			part := l.asked[at:min(at+left, len(l.asked))]
			missed += find(part)
			left -= len(part)
			at = (at + len(part)) % len(l.asked)
		}
		took := time.Since(began)
		if missed > 0 {
			return 0, fmt.Errorf("%d lookups of resident names missed", missed)
		}
		return took, nil
	}
}

func (l *loaded) fillPeer(group, name int) {
	l.peer.Store(fullKey{session, shapeOf(group).Key(), nameOf(name)}, name)
}

// renewPeer makes the peer again. Its seed and where its keys lie make it up to
// twice as fast as another one of the same keys, for as long as it is there.
func (l *loaded) renewPeer() {
	l.peer = new(sync.Map)
	for g := range groups {
		for i := range names {
			l.fillPeer(g, i)
		}
	}
}

func (l *loaded) peerFind(places []int) (missed int) {
	for _, i := range places {
		if _, ok := l.peer.Load(l.keys[i]); !ok {
			missed++
		}
	}
	return missed
}

func (l *loaded) fullFind(places []int) (missed int) {
	for _, i := range places {
		if _, ok := l.session.Lookup(l.shapes[uint(i)/names], l.names[uint(i)%names], 0); !ok {
			missed++
		}
	}
	return missed
}

func (l *loaded) nameFind(places []int) (missed int) {
	for _, i := range places {
		if _, ok := l.handles[uint(i)/names].Lookup(l.names[uint(i)%names], 0); !ok {
			missed++
		}
	}
	return missed
}

func (l *loaded) internedFind(places []int) (missed int) {
	for _, i := range places {
		if _, ok := l.handles[uint(i)/names].LookupID(l.ids[uint(i)%names]); !ok {
			missed++
		}
	}
	return missed
}

func (l *loaded) heldFind(places []int) (missed int) {
	for range places {
		if !l.refs[0].Resident() {
			missed++
		}
	}
	return missed
}

// Hits measures the read paths against S, and what the policy costs.
func Hits(ctx context.Context) ([]Figure, error) {
	l, err := load(ctx)
	if err != nil {
		return nil, err
	}
	defer l.session.Close(context.WithoutCancel(ctx))
	var hot atomic.Pointer[int]
	hot.Store(new(int))
	loads := func(places []int) (missed int) {
		for range places {
			if hot.Load() == nil {
				missed++
			}
		}
		return missed
	}
	paths := []struct {
		name, peer string
		find, base finder
		gate       *Gate
	}{
		{"hit held reference", "an atomic load", l.heldFind, loads, AtMost(6)},
		{"hit group handle, interned name", "S", l.internedFind, l.peerFind, AtMost(0.06)},
		{"hit group handle, name", "S", l.nameFind, l.peerFind, AtMost(0.5)},
		{"hit session, shape, name", "S", l.fullFind, l.peerFind, AtMost(0.9)},
	}
	var out []Figure
	for _, p := range paths {
		at := 0
		f := Figure{Bench: p.name, RatioTo: p.peer, Goroutines: 1, Gate: p.gate.allocating(0), before: l.renewPeer,
			Allocs: allocations(func() { at = (at + 1) % len(l.asked); p.find(l.asked[at : at+1]) })}
		if f, err = f.compare(ctx, quotient, l.reads(0, p.find), l.reads(0, p.base)); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	whole, err := l.withPolicy(ctx)
	if err != nil {
		return nil, err
	}
	alone, err := acquisition(ctx)
	return append(out, whole, alone), err
}

// acquisition is what the policy takes of a session of 256 groups that is asked
// for a few shapes more, unevenly: uses of what is there, now and then a victim.
func acquisition(ctx context.Context) (Figure, error) {
	const capacity, shapes = 256, 260
	const atMost = 100 * time.Nanosecond
	p, err := policy.New(policy.Config{Kind: policy.Duel, Groups: capacity})
	if err != nil {
		return Figure{}, err
	}
	known := make([]*policy.Group, shapes)
	for i := range known {
		p.Request(shapeOf(i))
		known[i] = p.Admit(shapeOf(i), 1, 1)
	}
	for p.Len() > capacity {
		p.Remove(p.Victim(nil))
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 4, shapes-1)
	draw := make([]int, 1<<14)
	for i := range draw {
		draw[i] = int(zipf.Uint64())
	}
	at := 0
	acquire := func() {
		i := draw[at%len(draw)]
		at++
		if p.Use(known[i]); !known[i].Resident() {
			p.Remove(p.Victim(nil))
			known[i] = p.Admit(known[i].Shape(), 1, 1)
		}
	}
	f := Figure{Bench: "the policy, an acquisition of 256", RatioTo: "100 ns", Goroutines: 1, Gate: AtMost(1).allocating(0), Allocs: allocations(acquire)}
	f, err = f.take(ctx, 15, func() (float64, error) {
		took, err := Quickest(20, func() error {
			for range draw {
				acquire()
			}
			return nil
		})
		return float64(took) / float64(len(draw)) / float64(atMost), err
	})
	return f, err
}

// caughtUp returns once the policy has seen every lookup so far.
func (l *loaded) caughtUp(ctx context.Context) error {
	_, err := l.session.Stream(ctx)
	return err
}

// withPolicy is the full key again with all that a lookup causes: what its
// reader leaves to the session's actor is waited for, on one core for both.
func (l *loaded) withPolicy(ctx context.Context) (Figure, error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	read := l.reads(0, l.fullFind)
	ours := func(n int) (time.Duration, error) {
		if err := l.caughtUp(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		if _, err := read(n); err != nil {
			return 0, err
		}
		err := l.caughtUp(ctx)
		return time.Since(began), err
	}
	f := Figure{Bench: "the same and its policy's part", RatioTo: "S", Goroutines: 1, Gate: AtMost(2), before: l.renewPeer}
	return f.compare(ctx, quotient, ours, l.reads(0, l.peerFind))
}

// Scaling is what two readers of full keys get done against one, divided by what
// a loop without shared memory gains in the same round; a round that never had
// two cores to itself is void. The policy has caught up before each slice; what
// it costs afterwards is in the figures of Hits.
func Scaling(ctx context.Context) ([]Figure, error) {
	f := Figure{Bench: "hit, two readers", RatioTo: "one reader, were the cores free", Goroutines: 2, Gate: AtLeast(1.4)}
	if runtime.GOMAXPROCS(0) < 2 {
		return []Figure{f.unmeasured(oneCore)}, nil
	}
	l, err := load(ctx)
	if err != nil {
		return nil, err
	}
	defer l.session.Close(context.WithoutCancel(ctx))
	var sinks [2]struct {
		x uint64
		_ [56]byte
	}
	spin := func(g, n int) error {
		x := uint64(g) + 1
		for range n {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		sinks[g].x = x
		return nil
	}
	var reads [2]side
	for g := range reads {
		reads[g] = l.reads(g, l.fullFind)
	}
	read := func(g, n int) error { _, err := reads[g](n); return err }
	by := func(readers int, work func(g, n int) error) side {
		return func(n int) (time.Duration, error) {
			if err := l.caughtUp(ctx); err != nil {
				return 0, err
			}
			var errs [2]error
			took := together(readers, func(g int) { errs[g] = work(g, n) })
			return took, errors.Join(errs[:]...)
		}
	}
	gained := func(t []float64) float64 {
		const leastOfTwo = 0.75 // of both cores
		free := t[2] / t[3]
		if slices.Max(t) == math.Inf(1) || free < leastOfTwo {
			return math.NaN()
		}
		return 2 * (t[0] / t[1]) / free
	}
	f, err = f.compare(ctx, gained, by(1, read), by(2, read), by(1, spin), by(2, spin))
	return []Figure{f}, err
}
