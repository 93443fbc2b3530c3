package kiln

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/progress"
	"github.com/kiln-cache/kiln/sessioncache"
)

// Kind says how a look-up was answered.
type Kind string

// The kinds. A group and the constants answer with Hit, Miss, Joined or Failed, the
// artefact cache below a group with any of these but Removed.
const (
	Hit           Kind = "hit"            // it was there
	Miss          Kind = "miss"           // it was absent; this call had it made
	Joined        Kind = "joined"         // another call was having it made
	PersistentHit Kind = "persistent_hit" // made from a stored blob
	KernelHit     Kind = "kernel_hit"     // made from kernels that were there
	NestedHit     Kind = "nested_hit"     // it was there, asked for by another artefact's recipe
	Failed        Kind = "failed"         // the call returned an error
	Removed       Kind = "removed"        // no look-up: a constant stopped being resident, see Event.Removal
)

// Event tells how one look-up was answered; see Config.Listen.
type Event struct {
	Context context.Context // of the call, so that a listener can tell requests apart; Background for a Lookup
	Session string          // its name
	Shape   Shape           // of the group: the shape that is compiled
	Name    string
	Key     string // of the artefact or constant; empty where the name stands for none

	// Engine is the one that has the constant, in an event about a constant: then
	// Session, Shape and Name are empty. In all other events it is nil.
	Engine  *constants.Engine
	Bypass  constants.Bypass  // why the constant is not cached; Kind is Miss then
	Removal constants.Removal // why the constant is no longer resident; Kind is Removed then

	Kind Kind // at the name, or of the constant

	// Artefact is how the artefact cache answered where the name was absent: with
	// Hit, another name or session had the artefact. Empty if Kind is not Miss.
	Artefact Kind

	// Reason says why the artefact was no hit, or was refused; Field what the reason
	// concerns. Both are empty for hits and joins.
	Reason Reason
	Field  string

	Err      error         // that the call returned; nil unless Kind is Failed
	Duration time.Duration // of the call
	Cost     time.Duration // that making the value took, in this call or another; 0 if there is none
}

// found tells of a look-up that found a value, which err says is not what was
// asked for. A Lookup that finds nothing has answered nothing.
func (g *Group) found(ctx context.Context, start time.Time, name string, ref sessioncache.Ref, err error) {
	g.tell(start, Event{Context: ctx, Name: name, Key: ref.Key(), Kind: Hit, Cost: ref.Cost()}, artefacts.Outcome{}, err)
}

// tell tells the listener, if there is one, of a call that began at start. A panic of
// it goes no further.
func (g *Group) tell(start time.Time, e Event, below artefacts.Outcome, err error) {
	if g.listen == nil {
		return
	}
	e.Session, e.Shape, e.Duration = g.session.name, g.Shape(), time.Since(start)
	if e.Kind == Miss {
		e.Artefact, e.Reason, e.Field = Kind(below.Event), below.Reason, below.Field
	}
	e.fail(err)
	guard.Call(func() { g.listen(e) }, func(err error) { g.session.runtime.logger.Error("kiln: listener", "name", e.Name, "error", err) })
}

// fail says that the call returned err, if that is one.
func (e *Event) fail(err error) {
	if err != nil {
		e.Kind, e.Artefact, e.Err = Failed, "", err
		e.Reason, e.Field = fault.ReasonOf(err)
	}
}

// constant is an event of the constants as the listener of the runtime is told it.
func constant(told constants.Event) Event {
	e := Event{Context: told.Context, Engine: told.Engine, Key: told.Key.ID, Bypass: told.Bypass, Removal: told.Removal,
		Kind: Miss, Duration: told.Duration, Cost: told.Cost}
	switch {
	case told.Hit:
		e.Kind = Hit
	case told.Joined:
		e.Kind = Joined
	case told.Removal != "":
		e.Kind = Removed
	}
	e.fail(told.Err)
	return e
}

// announcer tells Config.Compiling of work that takes long; nil if nobody listens.
func (r *Runtime) announcer() progress.Announcer {
	if r.cfg.Compiling == nil {
		return nil
	}
	return func(key string) (end func(error)) {
		return r.progress.Announce(func(phase string, elapsed time.Duration, err error) {
			guard.Call(func() {
				r.cfg.Compiling(gpuexec.CompileEvent{Key: key, Name: key, Phase: phase, Elapsed: elapsed, Err: err})
			}, func(err error) {
				r.logger.Error("kiln: listener", "key", fault.Printable(key), "error", err)
			})
		})
	}
}

// announced is q whose creators are announced while they take long. Kernels are not asked
// for in this way: their executor does that.
func (r *Runtime) announced(q artefacts.Request) artefacts.Request {
	tell := func(make func() (artefacts.Built, error)) (b artefacts.Built, err error) {
		end := r.announcer().Begin(q.Key)
		guard.Guard(func() (err error) { b, err = make(); return err }, func(e error) { err = e; end(e) })
		return b, err
	}
	if create := q.Create; create != nil {
		q.Create = func(ctx context.Context) (artefacts.Built, error) {
			return tell(func() (artefacts.Built, error) { return create(ctx) })
		}
	}
	if load := q.Load; load != nil {
		q.Load = func(ctx context.Context, blob []byte) (artefacts.Built, error) {
			return tell(func() (artefacts.Built, error) { return load(ctx, blob) })
		}
	}
	return q
}

// clock is the time if somebody listens, else zero: nobody else pays for it.
func (g *Group) clock() time.Time {
	if g.listen == nil {
		return time.Time{}
	}
	return time.Now()
}
