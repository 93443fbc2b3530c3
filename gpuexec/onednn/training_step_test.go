package onednn

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// primitives is how many primitives a step of one layer has: 11 forward, 14 backward and 2
// sums. Of the list's 42 operations equal ones are one.
const primitives = 27

// asked are the requests of a step, each once.
type asked struct {
	keys  map[string]bool
	specs []primitive.Spec
}

func (a *asked) note(t testing.TB, s primitive.Spec) {
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	if !a.keys[key] {
		a.keys[key] = true
		a.specs = append(a.specs, s)
	}
}

// alone runs a step on one goroutine, each primitive beside the library called directly,
// bit for bit.
func (l *layer) alone(seed uint64) (all asked) {
	all.keys = make(map[string]bool)
	l.run = func(s primitive.Spec, given memories) ran {
		all.note(l, s)
		p := l.kernel(s)
		args, memories := l.arguments(p, given)
		l.both(s, args...)
		return ran{p.Descriptor().Hints(), memories}
	}
	l.forward(l.filled(seed, Dense("f32", rows, hidden)))
	l.backward(l.filled(seed+10, Dense("f32", rows, hidden)))
	return all
}

// gradients are what a step is for, by name.
func (l *layer) gradients() map[string]*Memory {
	all := map[string]*Memory{"dx": l.done["dx"].args.result()}
	for name, r := range l.done {
		switch {
		case strings.HasSuffix(name, "/bwd_weights"):
			all[name], all[strings.TrimSuffix(name, "/bwd_weights")+" bias"] = r.args[DiffWeights], r.args[DiffBias]
		case strings.HasSuffix(name, "LayerNorm/bwd"):
			all[name] = r.args[DiffSrc]
			all[strings.TrimSuffix(name, "/bwd")+" gamma"], all[strings.TrimSuffix(name, "/bwd")+" beta"] = r.args[DiffScale], r.args[DiffShift]
		case name == "output/LayerNorm":
			all[name] = r.args[Dst]
		}
	}
	return all
}

// D3, D5: a whole training step of a layer of BERT-base, forward, backward by data and
// backward by weights: every primitive comes out of the cache and computes the bits that the
// library computes when it is called directly; the layer's gradients are those of a
// reference in float64 within 1e-4, of numbers near 1; the second step makes nothing.
func TestTrainingOfALayer(t *testing.T) {
	r := open1(t, limit.Limit{})
	l := layerOf(r)
	all := l.alone(1)
	if n := r.cache.Len(); len(all.specs) != primitives || n != primitives {
		t.Errorf("%d distinct requests and %d entries, want %d of each", len(all.specs), n, primitives)
	}
	if done := len(l.done) - 3; done != len(l.list) || done != 42 { // without x, dy and dx
		t.Errorf("%d operations of %d ran, want 42", done, len(l.list))
	}
	f := reference{w: make(map[string][]float64), out: make(map[string][]float64), mask: wide(Of[float32](l.mask))}
	for name, m := range l.weights {
		f.w[name] = wide(Of[float32](m))
	}
	f.step(wide(Of[float32](l.done["x"].args.result())), wide(Of[float32](l.done["dy"].args.result())))
	got := l.gradients()
	if len(got) != len(f.out) {
		t.Errorf("%d gradients, want %d", len(got), len(f.out))
	}
	for name, want := range f.out {
		near(t, name, Of[float32](got[name]), want, 1e-4)
	}
	made := r.cache.Stats().Events[artefacts.Miss]
	l.alone(2)
	if n := r.cache.Stats().Events[artefacts.Miss]; n != made {
		t.Errorf("the second step made %d primitives", n-made)
	}
}

// D5, D7, G6, G14: forward on one thread, backward on another. What an operation leaves for
// its backward ones goes through a group of a session: without a lane, set by the one
// thread and taken by the other, with the lease of its primitive, which ends there. The bits
// are those of a step on one goroutine.
func TestTrainingOnTwoThreads(t *testing.T) {
	const steps = 4
	r := open1(t, limit.Limit{})
	l := layerOf(r)
	var want [2]map[string][]byte
	for seed := range want {
		l.alone(uint64(seed))
		want[seed] = make(map[string][]byte)
		for name, m := range l.gradients() {
			want[seed][name] = bytes.Clone(m.Bytes())
		}
	}
	made := r.cache.Stats().Events[artefacts.Miss]
	session, err := sessioncache.Open(sessioncache.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close(bg)
	shape, err := shapegroups.Of([]int64{batch, length})
	if err != nil {
		t.Fatal(err)
	}
	handed := make(chan int, steps)
	var threads sync.WaitGroup
	threads.Go(func() {
		runtime.LockOSThread()
		defer close(handed)
		for i := range steps {
			l.ahead(session, shape, i)
			handed <- i
		}
	})
	threads.Go(func() {
		runtime.LockOSThread()
		for i := range handed {
			for name, m := range l.behind(session, shape, i) {
				if !bytes.Equal(m.Bytes(), want[i%2][name]) {
					t.Errorf("step %d: %s differs from that of one thread", i, name)
				}
			}
		}
	})
	threads.Wait()
	if n := session.Len(); n != 0 {
		t.Errorf("%d names are left, want all taken", n)
	}
	if s := r.cache.Stats(); s.Events[artefacts.Miss] != made || s.Entries != primitives {
		t.Errorf("%d primitives were made again, %d entries, want 0 and %d", s.Events[artefacts.Miss]-made, s.Entries, primitives)
	}
}

// leased is a copy of the layer for one thread, which leases what it runs.
func (l *layer) leased(keep func(primitive.Lease)) *layer {
	mine := *l
	mine.done = make(map[string]ran)
	mine.run = func(s primitive.Spec, given memories) ran {
		lease, _, err := l.Primitive(bg, &s, "")
		if err != nil {
			l.Fatal(err)
		}
		keep(lease)
		args, all := l.arguments(lease.Primitive(), given)
		l.rig.run(lease.Primitive(), args...)
		return ran{lease.Primitive().Descriptor().Hints(), all}
	}
	return &mine
}

// ahead runs a step forward, and sets what it leaves.
func (l *layer) ahead(session *sessioncache.Session, shape shapegroups.Shape, step int) {
	var leases []primitive.Lease
	mine := l.leased(func(lease primitive.Lease) { leases = append(leases, lease) })
	mine.forward(l.filled(uint64(step%2), Dense("f32", rows, hidden)))
	g, err := session.Group(bg, shape)
	if err != nil {
		l.Fatal(err)
	}
	defer g.Close()
	for _, o := range l.list {
		if o.Phase != "" {
			break
		}
		lease := leases[0]
		leases = leases[1:]
		v := sessioncache.Value{Any: mine.done[o.Name], Bytes: lease.Bytes(), Free: lease.End}
		if err := g.Set(bg, fmt.Sprint(step, " ", o.Name), v, sessioncache.Options{Owner: "step"}); err != nil {
			l.Fatal(err)
		}
	}
}

// behind takes that, and runs the step backward.
func (l *layer) behind(session *sessioncache.Session, shape shapegroups.Shape, step int) map[string]*Memory {
	g, err := session.Group(bg, shape)
	if err != nil {
		l.Fatal(err)
	}
	defer g.Close()
	mine := l.leased(func(lease primitive.Lease) { l.Cleanup(lease.End) })
	for _, o := range l.list {
		if o.Phase != "" {
			break
		}
		v, err := g.Take(bg, fmt.Sprint(step, " ", o.Name), 0, nil)
		if err != nil {
			l.Fatal(err)
		}
		defer v.Free()
		mine.done[o.Name] = v.Any.(ran)
	}
	mine.backward(l.filled(uint64(step%2)+10, Dense("f32", rows, hidden)))
	return mine.gradients()
}

// D1: each request of a training step has the same list of implementations cold, warm, and
// with any of the step's primitives in the cache, of whatever request and number.
func TestImplementationsOfTraining(t *testing.T) {
	l := layerOf(open1(t, limit.Limit{}))
	all := l.alone(1)
	var cold [][]string
	for _, s := range all.specs {
		names := open1(t, limit.Limit{}).names(s)
		if warm := l.names(s); len(names) == 0 || !slices.Equal(warm, names) {
			t.Errorf("%s %s: %v with the whole step in the cache, want %v", s.Kind, s.Op.Direction, warm, names)
		}
		cold = append(cold, names)
	}
	t.Log(cold)
	random := rand.New(rand.NewPCG(1, 1))
	for range 4 {
		r := open1(t, limit.Limit{})
		for i, s := range all.specs {
			for s.Impl = range cold[i] {
				if random.IntN(2) == 0 {
					continue
				}
				if p := r.kernel(s); p.Descriptor().Name() != cold[i][s.Impl] {
					t.Errorf("%s %s: implementation %d is %s, want %s", s.Kind, s.Op.Direction, s.Impl, p.Descriptor().Name(), cold[i][s.Impl])
				}
			}
		}
		for i, s := range all.specs {
			for range 2 {
				if warm := r.names(s); !slices.Equal(warm, cold[i]) {
					t.Errorf("%s %s: %v with some in the cache, want %v", s.Kind, s.Op.Direction, warm, cold[i])
				}
			}
		}
	}
}
