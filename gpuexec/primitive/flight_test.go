package primitive_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// gate holds a library's work back until it is opened.
type gate struct{ begun, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 64), make(chan struct{})} }

func (g *gate) pass(ctx context.Context, _ string) error {
	g.begun <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// later runs a statement and gives its result.
func (r *rig) later(statement string) <-chan string {
	result := make(chan string, 1)
	go func() { result <- r.say(statement) }()
	return result
}

func (r *rig) wants(result <-chan string, want string) {
	r.t.Helper()
	select {
	case got := <-result:
		if !agrees(got, want) {
			r.t.Errorf("got %s, want %s", got, want)
		}
	case <-time.After(patience):
		r.t.Fatalf("no result, want %s", want)
	}
}

// until polls.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("never %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// A descriptor lookup waits for its primitive, takes no entry's place, and
// leaves with its own context: C7, D2, F9.
func TestDescriptorJoinsItsPrimitive(t *testing.T) {
	r := open(t, limit.Of(1), named)
	g := newGate()
	r.lib.creating = g.pass
	made := r.later("primitive a")
	<-g.begun
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, _, err := r.Descriptor(ctx, r.spec("a"))
		left <- err
	}()
	shared := r.later("desc a")
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(g.open)
	r.wants(made, "0 by=miss")
	r.wants(shared, "0 by=hit shared=yes")
	r.expect("builds", "1")
	r.expect("primitive a", "0 by=hit")
}

// A primitive that fails fails no descriptor: F2.
func TestDescriptorOutlastsAFailure(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	g := newGate()
	r.lib.creating = func(ctx context.Context, name string) error {
		return errors.Join(g.pass(ctx, name), errors.New("broken"))
	}
	made := r.later("primitive a")
	<-g.begun
	d := r.later("desc a")
	close(g.open)
	if got := <-made; got == "0 by=miss" {
		t.Errorf("the primitive was made")
	}
	r.wants(d, "0 shared=no")
	r.expect("len", "1")
}

// A primitive waits for its descriptor rather than have a second one built.
func TestPrimitiveJoinsItsDescriptor(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	g := newGate()
	r.lib.describing = g.pass
	d := r.later("desc a")
	<-g.begun
	made := r.later("primitive a")
	until(t, "two flights", func() bool { return r.cache.Stats().Flights == 2 })
	r.expect("len", "1") // in one place
	close(g.open)
	r.wants(d, "0 by=miss shared=no")
	r.wants(made, "0 by=miss")
	r.expect("builds", "1")
	r.expect("len", "1")
	r.expect("desc a", "0 by=hit shared=yes")
}

// A descriptor is where it was if its primitive fails, and meanwhile: F2, D3.
func TestDescriptorOutlastsItsTaker(t *testing.T) {
	r := open(t, limit.Of(2), named)
	g := newGate()
	r.lib.creating = func(ctx context.Context, name string) error {
		return errors.Join(g.pass(ctx, name), errors.New("broken"))
	}
	r.expect("desc b", "0 by=miss")
	r.expect("desc a", "0 by=miss")
	made := r.later("primitive a")
	<-g.begun
	r.expect("len", "2") // the flight and the descriptor have one place
	close(g.open)
	if got := <-made; got == "0 by=miss" {
		t.Errorf("the primitive was made")
	}
	r.expect("len", "2")
	r.expect("desc b", "0 by=hit shared=no")
	r.expect("desc a", "0 by=hit shared=no")
	r.expect("builds", "2")
}

// Whatever overlaps, a request has one descriptor built and is one entry: F1, D2, D3.
func TestOneBuildWhateverOverlaps(t *testing.T) {
	for round := range 200 {
		r := open(t, limit.Limit{}, named)
		var start, end sync.WaitGroup
		start.Add(1)
		for i := range 16 {
			verb := "desc a"
			if (i+round)%3 == 0 {
				verb = "primitive a"
			}
			end.Go(func() {
				start.Wait()
				if got := r.say(verb); got[:2] != "0 " {
					t.Errorf("%s: %s", verb, got)
				}
			})
		}
		start.Done()
		end.Wait()
		if b, c := r.lib.describes.Load(), r.lib.creates.Load(); b != 1 || c != 1 {
			t.Fatalf("round %d: %d descriptors and %d primitives built", round, b, c)
		}
		r.expect("len", "1")
		r.expect("desc a", "0 by=hit shared=yes")
		r.cache.Close(t.Context()) // not all of them at the end
	}
}

// A creator may ask for descriptors, also its own and in circles: they need no
// primitive. F5
func TestNestedDescriptors(t *testing.T) {
	other := map[string]string{"a": "b", "b": "a"}
	for range 100 {
		r := open(t, limit.Limit{}, named)
		r.lib.creating = func(ctx context.Context, name string) error {
			for _, n := range []string{name, other[name]} {
				d, _, err := r.Descriptor(ctx, r.spec(n))
				if err != nil {
					return fmt.Errorf("descriptor of %s for %s: %w", n, name, err)
				}
				d.Release()
			}
			return nil
		}
		a, b := r.later("primitive a"), r.later("primitive b")
		r.wants(a, "0 by=miss")
		r.wants(b, "0 by=miss")
		r.close()
	}
}

// A circle of primitives is one, and so is one of descriptors; a descriptor for
// the primitive of another that waits for it is none. F5
func TestCircles(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	other := map[string]string{"a": "b", "b": "a"}
	primitiveOf := func(ctx context.Context, name string) error {
		l, _, err := r.Primitive(ctx, r.spec(name), "")
		l.End()
		return err
	}
	descriptorOf := func(ctx context.Context, name string) error {
		d, _, err := r.Descriptor(ctx, r.spec(name))
		if err == nil {
			d.Release()
		}
		return err
	}

	r.lib.creating = func(ctx context.Context, name string) error { return primitiveOf(ctx, other[name]) }
	if err := primitiveOf(t.Context(), "a"); !errors.Is(err, fault.ErrCycle) {
		t.Errorf("primitives: %v", err)
	}
	r.lib.creating = nil

	for _, next := range []map[string]string{other, {"a": "a"}} {
		r.lib.describing = func(ctx context.Context, name string) error { return descriptorOf(ctx, next[name]) }
		if err := descriptorOf(t.Context(), "a"); !errors.Is(err, fault.ErrCycle) {
			t.Errorf("descriptors %v: %v", next, err)
		}
	}
	r.lib.describing = nil

	r.lib.creating = func(ctx context.Context, name string) error {
		if name == "a" {
			return primitiveOf(ctx, "b")
		}
		return descriptorOf(ctx, "a")
	}
	if err := primitiveOf(t.Context(), "a"); err != nil {
		t.Errorf("a descriptor for the primitive of another: %v", err)
	}
}

// A primitive whose creator asks for the descriptor of another is made, also where that is
// being built already and what builds it waits for the primitive: F5.
func TestDescriptorThatWaitsForItsAsker(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	begun, waits := make(chan struct{}), make(chan struct{})
	ask := func(ctx context.Context, name string) error {
		d, _, err := r.Descriptor(ctx, r.spec(name))
		if err == nil {
			d.Release()
		}
		return err
	}
	r.lib.creating = func(ctx context.Context, _ string) error {
		close(begun)
		<-waits
		time.Sleep(20 * time.Millisecond) // what builds the other has asked meanwhile, or asks later: each is well
		return ask(ctx, "b")
	}
	var once sync.Once
	r.lib.describing = func(ctx context.Context, name string) error {
		if name != "b" {
			return nil
		}
		once.Do(func() { close(waits) })
		return ask(ctx, "a")
	}
	made := r.later("primitive a")
	<-begun
	other := r.later("desc b")
	r.wants(made, "0 by=miss")
	r.wants(other, "0 shared=no")
}

// Many users of few requests in a cache that is too small: what anybody holds is
// alive, and all is freed once in the end (rig.close). C5
func TestHammer(t *testing.T) {
	ops := map[string]op{}
	for i := range 6 {
		ops[fmt.Sprint("k", i)] = op{kind: "matmul", impls: 3, valid: []int{0, 2}}
	}
	r := open(t, limit.Of(3), ops)
	var start, end sync.WaitGroup
	start.Add(1)
	for g := range 8 {
		end.Go(func() {
			start.Wait()
			for i := range 150 {
				s := r.spec(fmt.Sprint("k", (i*7+g*3)%6), fmt.Sprint("id=", (i+g)%3))
				r.use(s, (i+g)%4)
			}
		})
	}
	start.Done()
	end.Wait()
	if n := r.cache.Len(); n > 3 {
		t.Errorf("%d entries", n)
	}
}

// use gets what belongs to s in one of four ways, and checks it.
func (r *rig) use(s *primitive.Spec, way int) {
	ctx := context.Background()
	check := func(d *primitive.Descriptor, err error) bool {
		switch {
		case s.Impl == 2 && errors.Is(err, primitive.ErrEnd):
			return false
		case err != nil:
			r.t.Error(err)
			return false
		case d.Position() != 2*s.Impl || r.lib.use(d).name != nameOf(s):
			r.t.Errorf("implementation %d of %s is at %d of %v", s.Impl, nameOf(s), d.Position(), r.lib.use(d).name)
		}
		return true
	}
	if way == 0 {
		l, _, err := r.Primitive(ctx, s, "")
		if err == nil {
			check(l.Primitive().Descriptor(), nil)
			l.End()
		} else {
			check(nil, err)
		}
		return
	}
	d, _, err := r.Descriptor(ctx, s)
	if !check(d, err) {
		return
	}
	defer d.Release()
	if way == 1 {
		l, _, err := r.Make(ctx, d, "")
		if err != nil {
			r.t.Error(err)
			return
		}
		check(l.Primitive().Descriptor(), nil)
		l.End()
	}
}

// D3, F1: of callers that ask for one descriptor at once, one built it.
func TestOneOfManyBuilt(t *testing.T) {
	r := open(t, limit.Limit{}, named)
	g := newGate()
	r.lib.describing = g.pass
	first := r.later("desc a")
	<-g.begun
	var others []<-chan string
	for range 8 {
		others = append(others, r.later("desc a"))
	}
	time.Sleep(50 * time.Millisecond) // most join the flight; one that comes later finds the same
	close(g.open)
	r.wants(first, "0 by=miss")
	for _, other := range others {
		r.wants(other, "0 by=hit shared=no")
	}
}

// F9: a list is not walked on for a call whose context has ended.
func TestListEndsWithItsContext(t *testing.T) {
	r := open(t, limit.Limit{}, map[string]op{"a": {kind: "matmul", impls: 3}})
	walked := &walk{library: r.lib}
	walked.ctx, walked.stop = context.WithCancel(t.Context())
	e := engine(t, r.cache, walked, machine)
	_, _, err := e.Descriptor(walked.ctx, r.spec("a", "id=2"))
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's", err)
	}
	until(t, "the walk ended", walked.ended.Load)
	if n := walked.seen.Load(); n != 2 {
		t.Errorf("%d implementations were looked at, want two", n)
	}
}

// walk has a list during which its caller leaves.
type walk struct {
	*library
	ctx   context.Context
	stop  context.CancelFunc
	seen  atomic.Int64
	ended atomic.Bool
}

func (w *walk) Implementations(ctx context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	return func(yield func(primitive.Implementation, error) bool) {
		defer w.ended.Store(true)
		for i, err := range w.library.Implementations(ctx, s) {
			if w.seen.Add(1) == 2 {
				w.stop()
				<-ctx.Done()
			}
			if !yield(i, err) {
				return
			}
		}
	}
}
