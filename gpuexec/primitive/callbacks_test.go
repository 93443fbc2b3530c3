package primitive_test

import (
	"context"
	"iter"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/actorstest"
	"github.com/kiln-cache/kiln/limit"
)

// unruly is a fake library whose list ends as it likes, once.
type unruly struct {
	*library
	end func(step func())
}

func (u *unruly) Implementations(ctx context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	list := u.library.Implementations(ctx, s)
	return func(yield func(primitive.Implementation, error) bool) {
		if end := u.end; end != nil {
			u.end = nil
			defer end(func() { yield(nil, nil) })
		}
		list(yield)
	}
}

// F3, C5: a library's list that goes wrong when it is over, behind the descriptor that it gave,
// leaves no descriptor, and its key is usable.
func TestListThatEndsBadly(t *testing.T) {
	for what, end := range map[string]func(func()){
		"panics": func(func()) { panic("end") }, "ends the goroutine": func(func()) { runtime.Goexit() }, "goes on": func(step func()) { step() },
	} {
		r := open(t, limit.Limit{}, named)
		u := &unruly{library: r.lib}
		r.Engine = engine(t, r.cache, u, machine)
		for _, statement := range []string{"desc a", "primitive a"} {
			u.end = end
			if got := r.say(statement); agrees(got, "0") {
				t.Errorf("%s: %s: got %s, want an error", what, statement, got)
			}
			if n := r.lib.live.Load(); n != 0 {
				t.Errorf("%s: %s: %d native objects are left", what, statement, n)
			}
		}
		r.expect("desc a", "0 by=miss")
	}
}

// rude is a fake library that calls back at each of its methods, and what it gave.
type rude struct {
	*library
	at func(ctx context.Context, place string)
}

type rudeImplementation struct {
	primitive.Implementation
	*rude
	ctx context.Context
}

func (l *rude) Implementations(ctx context.Context, s *primitive.Spec) iter.Seq2[primitive.Implementation, error] {
	l.at(ctx, "implementations")
	return func(yield func(primitive.Implementation, error) bool) {
		for i, err := range l.library.Implementations(ctx, s) {
			if !yield(&rudeImplementation{i, l, ctx}, err) {
				return
			}
			l.at(ctx, "next")
		}
	}
}

func (i *rudeImplementation) Accepts() bool {
	i.at(i.ctx, "accepts")
	return i.Implementation.Accepts()
}

func (i *rudeImplementation) Describe() (primitive.Description, error) {
	i.at(i.ctx, "describe")
	d, err := i.Implementation.Describe()
	if free := d.Free; free != nil {
		d.Free = func() {
			free()
			i.at(context.Background(), "free of a descriptor")
		}
	}
	return d, err
}

func (l *rude) Create(ctx context.Context, d *primitive.Descriptor) (artefacts.Built, error) {
	l.at(ctx, "create")
	b, err := l.library.Create(ctx, d)
	return l.built(b), err
}

func (l *rude) Load(ctx context.Context, d *primitive.Descriptor, blob []byte) (artefacts.Built, error) {
	l.at(ctx, "load")
	b, err := l.library.Load(ctx, d, blob)
	return l.built(b), err
}

func (l *rude) built(b artefacts.Built) artefacts.Built {
	if free := b.Free; free != nil {
		b.Free = func() {
			free()
			l.at(context.Background(), "free of a primitive")
		}
	}
	blob := b.Blob
	b.Blob = func(ctx context.Context) ([]byte, error) {
		l.at(ctx, "blob")
		return blob(ctx)
	}
	return b
}

func (l *rude) Blobs(s *primitive.Spec) bool {
	l.at(context.Background(), "blobs")
	return l.library.Blobs(s)
}

// F3, F5, F8, C5: whatever a method of the library does, panics, ends its goroutine or asks the
// engine and the cache for something, nobody waits for ever, nothing native is left, and the key
// is usable.
func TestLibraryThatCallsBack(t *testing.T) {
	for what, does := range map[string]func(*rig, context.Context){
		"panics":           func(*rig, context.Context) { panic("called") },
		"ends":             func(*rig, context.Context) { runtime.Goexit() },
		"changes capacity": func(r *rig, _ context.Context) { r.sets(limit.Of(0)); r.sets(limit.Of(4)) },
		"asks for the descriptor": func(r *rig, ctx context.Context) {
			if d, _, err := r.Descriptor(ctx, r.spec("a", "id=1")); err == nil {
				d.Release()
			}
		},
		"asks for the primitive": func(r *rig, ctx context.Context) {
			l, _, _ := r.Primitive(ctx, r.spec("a", "id=1"), "")
			l.End()
		},
		"asks for another": func(r *rig, ctx context.Context) {
			l, _, _ := r.Primitive(ctx, r.spec("n"), "")
			l.End()
		},
		"closes": func(r *rig, ctx context.Context) { _ = r.cache.Close(ctx) },
	} {
		for _, place := range []string{"implementations", "next", "accepts", "describe", "free of a descriptor", "create", "load", "free of a primitive", "blob", "blobs"} {
			t.Run(what+" in "+place, func(t *testing.T) {
				r := open(t, limit.Of(4), named)
				u := &rude{library: r.lib, at: func(context.Context, string) {}}
				r.Engine = engine(t, r.cache, u, machine)
				var begun atomic.Bool
				at := func(ctx context.Context, in string) {
					if in == place && begun.CompareAndSwap(false, true) {
						does(r, ctx)
					}
				}
				u.at = at
				over := make(chan struct{})
				go func() {
					defer close(over)
					for _, step := range r.steps() {
						if !actorstest.Apart(step) && what != "ends" {
							t.Error("it reached the caller")
						}
					}
				}()
				select {
				case <-over:
				case <-time.After(patience):
					t.Fatal("it waits for ever")
				}
				if !begun.Load() {
					t.Errorf("%s was not called", place)
				}
				if what == "closes" {
					until(t, "without native objects", func() bool { return r.lib.live.Load() == 0 })
					return
				}
				r.empty()
				r.expect("primitive a id=1", "1 by=miss")
				r.expect("desc a id=1", "1 shared=yes")
			})
		}
	}
}

func (r *rig) sets(entries limit.Limit) { _ = r.cache.SetCapacity(entries, limit.Limit{}) }

// steps call every method of a library at least once.
func (r *rig) steps() []func() {
	ctx, s := context.Background(), r.spec("a", "id=1")
	descriptor := func() {
		if d, _, err := r.Descriptor(ctx, s); err == nil {
			_ = d.BlobID()
			d.Release()
		}
	}
	made := func() {
		l, _, _ := r.Primitive(ctx, s, "")
		l.End()
	}
	return []func(){
		descriptor, func() { r.sets(limit.Of(0)) }, descriptor, func() { r.sets(limit.Of(4)) }, made,
		func() {
			d, _, err := r.Descriptor(ctx, s)
			if err != nil {
				return
			}
			defer d.Release()
			blob, _ := r.Blob(ctx, d)
			r.sets(limit.Of(0))
			l, _, _ := r.FromBlob(ctx, s, "", blob)
			l.End()
		},
		func() { r.sets(limit.Of(4)) }, made,
	}
}

// empty waits for what is made, has nothing be resident, and waits until nothing native is left.
func (r *rig) empty() {
	r.t.Helper()
	t := r.t.(*testing.T)
	until(t, "without flights", func() bool { return r.cache.Stats().Flights == 0 })
	all, _ := r.cache.Capacity()
	for _, entries := range []limit.Limit{limit.Of(0), all} {
		if err := r.cache.SetCapacity(entries, limit.Limit{}); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "without native objects", func() bool { return r.lib.live.Load() == 0 })
}

// F3, C5: whichever call of a caller's context goes wrong, nothing is left of the request,
// and its key is usable.
func TestContextsThatGoWrong(t *testing.T) {
	for what, harm := range map[string]func(){"panics": func() { panic("asked") }, "ends the goroutine": runtime.Goexit} {
		for name, ask := range map[string]func(*rig, context.Context) error{
			"a descriptor": func(r *rig, ctx context.Context) error {
				d, _, err := r.Descriptor(ctx, r.spec("a"))
				if err == nil {
					d.Release()
				}
				return err
			},
			"a primitive": func(r *rig, ctx context.Context) error {
				l, _, err := r.Primitive(ctx, r.spec("a"), "")
				l.End()
				return err
			},
			"a primitive of a descriptor": func(r *rig, ctx context.Context) error {
				d, _, err := r.Descriptor(t.Context(), r.spec("a"))
				if err != nil {
					return err
				}
				defer d.Release()
				l, _, err := r.Make(ctx, d, "")
				l.End()
				return err
			},
			"a primitive behind its descriptor": func(r *rig, ctx context.Context) error {
				d, _, err := r.Descriptor(t.Context(), r.spec("a"))
				if err != nil {
					return err
				}
				d.Release()
				l, _, err := r.Primitive(ctx, r.spec("a"), "")
				l.End()
				return err
			},
			"a list": func(r *rig, ctx context.Context) (err error) {
				for d, failed := range r.All(ctx, r.spec("a")) {
					if err = failed; err == nil {
						d.Release()
					}
				}
				return err
			},
		} {
			r, n := open(t, limit.Of(2), named), int64(0)
			for n = 1; n < 100; n++ {
				var err error
				ctx := actorstest.NewMoody(t.Context(), n, harm)
				returned := actorstest.Apart(func() { err = ask(r, ctx) })
				if !ctx.Harmed() {
					break
				}
				if returned && err == nil {
					continue
				}
				r.empty()
				r.expect("primitive a", "0 by=miss")
				r.empty()
			}
			t.Logf("a context that %s: %d calls for %s", what, n-1, name)
		}
	}
}
