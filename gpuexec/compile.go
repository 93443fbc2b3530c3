package gpuexec

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/actors"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/flight"
)

// Compile builds the kernel of a source. Callers with one key at one time get
// the same kernel from one compile; each must Release it. When the last of them
// has left, the compile goes on for Config.Linger, and what it makes waits as long
// for a caller that asks again.
//
// Errors: ErrInvalid for a source without a key, ErrDeviceLost, ErrClosed, the
// context's, and the driver's, a panic of it among them.
func (e *Executor) Compile(ctx context.Context, src Source) (*Kernel, error) {
	return e.obtain(ctx, src, nil)
}

// Load makes the kernel of a source from a blob that Kernel.Blob gave on a
// device of the same identity and that was verified since. Errors are those of
// Compile, ErrRefused if the driver does not take the blob, ErrUnsupported if it
// has none, and ErrInvalid if the blob is empty.
func (e *Executor) Load(ctx context.Context, src Source, blob []byte) (*Kernel, error) {
	if len(blob) == 0 {
		return nil, fault.Invalidf("executor: load", "the blob is empty")
	}
	return e.obtain(ctx, src, slices.Clone(blob)) // the driver may be at it when the caller has left
}

// obtain gives the kernel of a source, loaded from the blob if there is one.
func (e *Executor) obtain(ctx context.Context, src Source, blob []byte) (*Kernel, error) {
	if src.Key == "" {
		return nil, fault.Invalidf("executor: compile", "the source has no key")
	}
	if err := checkParams("executor: compile", src.name(), src.Params); err != nil {
		return nil, err
	}
	if code, typed := src.Spec.(Code); typed {
		if src.Key != code.key(src.Params) {
			return nil, fault.Invalidf("executor: compile", "the key %s is not that of the code: let Code.Source make the source", fault.Printable(src.Key))
		}
		if err := e.checkBlock("executor: compile", &src, whole(code.Block)); err != nil {
			return nil, err
		}
	}
	local := int64(0) // of any launch, the one that a driver makes to be ready, too
	for _, p := range src.Params {
		if p.Kind == ParamLocal {
			local += min(p.Bytes, math.MaxInt64-local)
		}
	}
	if err := e.checkLocal("executor: compile", &src, local); err != nil {
		return nil, err
	}
	c := &call{exec: e, source: src, blob: blob}
	_, err := flight.Ride[*Kernel](ctx, c)
	return c.kernel, e.ended("compile", src.name(), err)
}

// call is one Compile or Load on its way. It implements flight.Caller.
type call struct {
	exec   *Executor
	source Source
	blob   []byte     // nil = compile
	asked  *compiling // of the last Ask
	kernel *Kernel    // the outcome, pinned
}

// compiling is the flight of a key's compile, or of its load; or what a call
// brought that joined another one.
type compiling struct {
	flight.Seats
	flight.Flight[*Kernel]
	source Source
	blob   []byte
	desk   *desk // that it is on; nil for what joined
	reply  actors.Reply[flight.Ticket[*Kernel]]
	aboard *compiling // the flight that the call is aboard of; set before the reply

	inside *generation   // on which a compile has a slot that asks for this one; nil = none
	pass   chan struct{} // closed, by the actor, where the flight is to wait for no slot
	passed bool          // it is; the actor's

	slots   *slots        // that it waits for one of; set before it is in compiles
	slotted bool          // it has one; the creator's
	through chan struct{} // closed where it is to wait for no slot, see slots.look
}

// Ask has the actor take the call aboard.
func (c *call) Ask(ctx context.Context) (flight.Ticket[*Kernel], error) {
	f := &compiling{source: c.source, blob: c.blob, pass: make(chan struct{}), through: make(chan struct{})}
	f.inside, _ = flight.Marked(ctx, c.exec).(*generation)
	f.Begin(ctx, c.exec, c.source.Key)
	c.asked = f
	return actors.Ask(ctx, c.exec.ref, func(r actors.Reply[flight.Ticket[*Kernel]]) message {
		f.reply = r
		return compileMsg{f}
	})
}

// Take pins the kernel for the caller. That cannot fail: the flight holds it.
func (c *call) Take(k *Kernel) {
	k.cell.Pin()
	k.taken.Store(true)
	c.kernel = k
}

// Leave has the actor take the call off.
func (c *call) Leave(flight.Ticket[*Kernel]) { c.exec.ref.Tell(leftMsg{c.asked.aboard}) }

// build compiles or loads a kernel when there is a slot for it, and calls done once, also
// where the driver ends the goroutine. One that another compile asks for runs in the slot of
// that, which waits for it: they would wait for each other (SPEC F5). So would one that it
// asks for through other rooms. The actor has entered the device for it.
func (e *Executor) build(f *compiling, g *generation, done func(*Kernel, error)) {
	if err := g.slots.take(f); err != nil {
		g.slots.giveBack(f)
		done(nil, err)
		return
	}
	start := time.Now()
	f.Mark(e, g)
	e.program(f.Context(), g, f.source, f.blob, func(p *built, requires []string, err error) {
		var k *Kernel
		switch {
		case lost(err):
			e.ref.Tell(lostMsg{on: g}) // before the slot is free
		case err == nil:
			by := "compiled"
			if f.blob != nil {
				by = "loaded"
			}
			e.cfg.Logger.Debug("executor: "+by, "kernel", f.source.name(), "took", time.Since(start))
			k = e.kernel(f, p, requires)
		}
		g.slots.giveBack(f)
		done(k, err)
	})
}

// kernel is what a flight made.
func (e *Executor) kernel(f *compiling, p *built, requires []string) *Kernel {
	code, _ := f.source.Spec.(Code)
	if code.Block == (Size{}) {
		code.Block = p.block
	}
	k := &Kernel{exec: e, source: f.source, block0: whole(code.Block), requires: requires, asked: make(chan struct{})}
	k.cell.Init(k.free)
	k.built.Store(p)
	if f.blob != nil {
		blob := f.blob // alone, without the flight
		k.blob.Store(&blob)
	}
	return k
}
