package figures

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// The size of the read benchmarks: 16,384 names.
const (
	groups    = 32
	names     = 512
	hitRounds = 15
)

// fullKey is the key of the peer S.
type fullKey struct{ session, shape, name string }

// loaded is a filled session and its peer. What is asked for are copies of the
// stored strings, as a request's would be; asked is in Zipf's distribution.
type loaded struct {
	session *sessioncache.Session
	shapes  []shapegroups.Shape
	handles []sessioncache.Group
	names   []string
	ids     []sessioncache.NameID
	refs    []sessioncache.Ref
	peer    sync.Map
	keys    []fullKey
	asked   []int // places of keys
}

func load(ctx context.Context) (*loaded, error) {
	const session = "bench-session-00"
	s, err := sessioncache.Open(sessioncache.Config{Name: session, Groups: sessioncache.LimitOf(groups)})
	if err != nil {
		return nil, err
	}
	l := &loaded{session: s}
	for i := range names {
		l.names = append(l.names, nameOf(i))
		l.ids = append(l.ids, s.Intern(nameOf(i)))
	}
	for g := range groups {
		if err := l.fill(ctx, session, g); err != nil {
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

func (l *loaded) fill(ctx context.Context, session string, g int) error {
	shape := shapeOf(g)
	l.shapes = append(l.shapes, shapeOf(g))
	for i := range names {
		if err := l.session.Set(ctx, shape, nameOf(i), sessioncache.Value{Any: i}, sessioncache.Options{}); err != nil {
			return err
		}
		l.peer.Store(fullKey{session, shape.Key(), nameOf(i)}, i)
		l.keys = append(l.keys, fullKey{string([]byte(session)), l.shapes[g].Key(), l.names[i]})
		ref, _ := l.session.Get(shape, nameOf(i))
		l.refs = append(l.refs, ref)
	}
	handle, _ := l.session.Lookup(shape)
	l.handles = append(l.handles, handle)
	return nil
}

var missed atomic.Int64

// walk asks for every place in turn, from a goroutine's own start.
func (l *loaded) walk(goroutine int, find func(i int) bool) {
	at := goroutine * len(l.asked) / 2
	for range l.asked {
		if !find(l.asked[at%len(l.asked)]) {
			missed.Add(1)
		}
		at++
	}
}

func (l *loaded) peerFind(i int) bool { _, ok := l.peer.Load(l.keys[i]); return ok }

func (l *loaded) fullFind(i int) bool {
	_, ok := l.session.Get(l.shapes[i/names], l.names[i%names])
	return ok
}

// Hits measures the read paths against S, and how they scale over two cores.
func Hits(ctx context.Context) ([]Figure, error) {
	l, err := load(ctx)
	if err != nil {
		return nil, err
	}
	defer l.session.Close(context.WithoutCancel(ctx))
	var hot atomic.Pointer[int]
	hot.Store(new(int))
	paths := []struct {
		name, peer string
		find, base func(i int) bool
		gate       *Gate
	}{
		{"hit held reference", "an atomic load", func(int) bool { return l.refs[0].Resident() }, func(int) bool { return hot.Load() != nil }, free(6)},
		{"hit group handle, interned name", "S", func(i int) bool { _, ok := l.handles[i/names].GetID(l.ids[i%names]); return ok }, l.peerFind, free(0.06)},
		{"hit group handle, name", "S", func(i int) bool { _, ok := l.handles[i/names].Get(l.names[i%names]); return ok }, l.peerFind, free(0.5)},
		{"hit session, shape, name", "S", l.fullFind, l.peerFind, free(0.9)},
	}
	var out []Figure
	for _, p := range paths {
		ratios, err := rounds(ctx, hitRounds, func() (float64, error) {
			peer, _ := Quickest(5, func() error { l.walk(0, p.base); return nil })
			ours, _ := Quickest(5, func() error { l.walk(0, p.find); return nil })
			return float64(ours) / float64(peer), nil
		})
		if err != nil {
			return nil, err
		}
		at := 0
		f := Figure{Bench: p.name, RatioTo: p.peer, Goroutines: 1, Gate: p.gate,
			Allocs: allocations(func() { p.find(l.asked[at%len(l.asked)]); at++ })}.From(ratios)
		out = append(out, f)
	}
	scaling, err := l.scaling(ctx)
	if err != nil {
		return nil, err
	}
	if n := missed.Swap(0); n > 0 {
		return nil, fmt.Errorf("%d lookups of resident names missed", n)
	}
	return append(out, scaling), nil
}

// scaling is what two readers get done against one, divided by what a loop
// without shared memory gains in the same round.
func (l *loaded) scaling(ctx context.Context) (Figure, error) {
	if runtime.GOMAXPROCS(0) < 2 {
		return Figure{}, fmt.Errorf("scaling over two cores needs two: GOMAXPROCS is 1")
	}
	var sink atomic.Uint64
	spin := func(g int) {
		x := uint64(g) + 1
		for range 400_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
		}
		sink.Store(x)
	}
	gain := func(f func(int)) float64 {
		var one, two time.Duration
		for i := range 5 {
			a, b := side(1, f), side(2, f)
			if i == 0 || a < one {
				one = a
			}
			if i == 0 || b < two {
				two = b
			}
		}
		return 2 * float64(one) / float64(two)
	}
	ratios, err := rounds(ctx, hitRounds, func() (float64, error) {
		return 2 * gain(func(g int) { l.walk(g, l.fullFind) }) / gain(spin), nil
	})
	return Figure{Bench: "hit, two readers", RatioTo: "one reader, were the cores free", Goroutines: 2, Gate: AtLeast(1.4)}.From(ratios), err
}
