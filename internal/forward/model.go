package forward

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Config says what a Model runs on. Every field but Store and those of type bool must be given;
// the caller closes what is in it after the Model.
type Config struct {
	Session  *kiln.Session
	Executor *gpuexec.Executor
	Library  ops.Library       // of the executor's backend
	Engine   *constants.Engine // where prepared weights are shared
	Weights  *Weights          // of the model to run; several models may share it
	Store    *blobstore.Store  // where packed weights are kept; nil = nowhere
	Packed   bool              // no padding between requests, where the device and the list have it
	BFloat16 bool              // round the weights of matrix products to bfloat16; ErrUnsupported where the device has none
	Record   bool              // note what is asked for: see Recorded
}

// Model is an encoder behind one session. It is owned by one goroutine.
type Model struct {
	session *kiln.Session
	exec    *gpuexec.Executor
	lib     ops.Library
	list    *oplist.Model
	names   []kiln.NameID
	alike   []int                    // see firsts
	sources map[alike]gpuexec.Source // of the run under way
	record  map[string]*Use          // what was asked for, by key; nil = not recorded
	tensors tensors
	last    *plan
	arena   *gpuexec.Buffer
	align   int64 // of the arena's parts, as the device wants it

	sequence []gpuexec.Launch // room for that of a run

	bfloat16  bool // weights of matrix products
	shapeless int  // see sameProgramsUpTo
}

// Answer is what one run gave and how it was served.
type Answer struct {
	// Output has a row of the model's width for each request, or for each token
	// where the model's output is per token. Padding is left out.
	Output []float32

	// How many artefacts were looked up, by the level that answered: held from the
	// run before, the session's group, the session by its full key, the artefact
	// cache, the store on disk.
	Held, Group, Session, Artefact, Disk int64

	Joined      int64         // lookups that waited for a compile of another caller
	Compiles    int64         // lookups that compiled
	CompileTime time.Duration // of those
	Saved       time.Duration // compile time of what was found
}

// New makes a model. It prepares no weights: see Prepare.
func New(cfg Config) *Model {
	list := cfg.Weights.list.model
	m := &Model{session: cfg.Session, exec: cfg.Executor, lib: forRows(cfg.Library), list: list, align: int64(cfg.Executor.Limits().Alignment),
		sources: make(map[alike]gpuexec.Source), bfloat16: cfg.BFloat16}
	if cfg.Record {
		m.record = make(map[string]*Use)
	}
	if cfg.Packed {
		m.pack()
	}
	m.intern(cfg.Packed)
	m.shapeless = m.sameProgramsUpTo()
	m.tensors = tensors{exec: cfg.Executor, lib: cfg.Library, engine: cfg.Engine, source: cfg.Weights, held: make(map[string]*tensor),
		shelf: shelfOf(cfg.Store, cfg.Executor, list)}
	return m
}

// Constants counts how the model came by its weights so far.
func (m *Model) Constants() Constants { return m.tensors.count }

// Shape is the shape that a session is asked for when a batch of requests runs
// whose longest one has this many tokens: what to announce.
func Shape(batch, tokens int) (shapegroups.Shape, error) {
	return shapegroups.Of([]int64{int64(batch), int64(tokens)})
}

// Run runs one batch: a row of token ids for each request. The rows are padded
// to the shape that the session's bucketing gives for the longest of them; a model that
// packs puts its padding behind the last of them. Outputs
// do not depend on the padding, nor on the other requests of the batch (SPEC E8).
// No request, a row of no id or of more than MaxTokens, and an id that the model has
// no token for are ErrInvalid, before anything is launched.
func (m *Model) Run(ctx context.Context, ids [][]int32) (*Answer, error) {
	return m.RunTyped(ctx, ids, nil)
}

// RunTyped is Run for requests whose tokens have types, a row for each request: 1, say,
// for those of the second text of a pair. A row that is nil, and nil alone, are of type 0.
// A row that is not as long as its ids, or has a type that the model has no row for, is
// ErrInvalid.
func (m *Model) RunTyped(ctx context.Context, ids, types [][]int32) (*Answer, error) {
	longest, total, err := m.check(ids, types)
	if err != nil {
		return nil, err
	}
	asked, err := Shape(len(ids), longest)
	if m.list.Ragged {
		asked, err = m.PackedShape(total)
	}
	if err != nil {
		return nil, err
	}
	a, err := m.run(ctx, asked, total, ids, types)
	if errors.Is(err, fault.ErrIO) && m.tensors.discard(ctx) == nil { // a weight's file in the store is gone: they are packed
		a, err = m.run(ctx, asked, total, ids, types)
	}
	return a, err
}

func (m *Model) run(ctx context.Context, asked shapegroups.Shape, total int, ids, types [][]int32) (*Answer, error) {
	if err := m.renew(ctx); err != nil {
		return nil, err
	}
	h, err := m.session.Group(ctx, asked.Dims()...)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	p, err := m.planFor(h.Shape().Dims()[0], total)
	if err != nil {
		return nil, err
	}
	if m.list.Ragged {
		p.split(m.lib, total, len(ids))
	}
	a := &Answer{}
	if err := m.prepare(ctx, h, p, a); err != nil {
		return nil, err
	}
	if err := m.compute(ctx, p, ids, types, a); err != nil {
		m.abandon()
		return nil, err
	}
	return a, nil
}

// check gives the length of the longest row and of all.
func (m *Model) check(ids, types [][]int32) (longest, total int, err error) {
	const op = "forward: run"
	if len(ids) == 0 {
		return 0, 0, fault.Invalidf(op, "no request")
	}
	if types != nil && len(types) != len(ids) {
		return 0, 0, fault.Invalidf(op, "%d rows of types for %d requests", len(types), len(ids))
	}
	for i, row := range types {
		if row != nil && len(row) != len(ids[i]) {
			return 0, 0, fault.Invalidf(op, "row %d has %d types for %d tokens", i, len(row), len(ids[i]))
		}
		for at, kind := range row {
			if kind < 0 || int(kind) >= m.list.Types {
				return 0, 0, fault.Invalidf(op, "row %d: token %d has the type %d, want one from 0 to %d", i, at, kind, m.list.Types-1)
			}
		}
	}
	for i, row := range ids {
		if len(row) == 0 || len(row) > m.list.MaxTokens {
			return 0, 0, fault.Invalidf(op, "row %d has %d tokens, want 1 to %d", i, len(row), m.list.MaxTokens)
		}
		for at, id := range row {
			if id < 0 || int(id) >= m.list.Vocab {
				return 0, 0, fault.Invalidf(op, "row %d: token %d is %d, want an id from 0 to %d", i, at, id, m.list.Vocab-1)
			}
		}
		longest, total = max(longest, len(row)), total+len(row)
	}
	return longest, total, nil
}

func (m *Model) compute(ctx context.Context, p *plan, ids, types [][]int32, a *Answer) error {
	sequence := append(m.feed(m.sequence[:0], p, ids, types), p.launches...)
	m.sequence = m.collect(sequence, p, ids, a)
	if err := m.exec.Submit(ctx, m.sequence...); err != nil {
		return err
	}
	clear(m.sequence) // the output is its user's
	native(a.Output)
	return nil
}

// abandon leaves the plan and the arena to the executor, which may still read
// the launches and write where they say: it keeps the memory until it is done.
func (m *Model) abandon() {
	m.last, m.sequence = nil, nil
	if m.arena != nil {
		m.arena.Release()
		m.arena = nil
	}
}

// Prepare prepares every weight, so that no request waits for one. A model that
// was not prepared prepares each weight at its first use.
func (m *Model) Prepare(ctx context.Context) error {
	return m.PrepareBeside(ctx, new(atomic.Int64))
}

// PrepareBeside is Prepare for models of the same weights that are prepared at once and
// share the counter: each weight is prepared by the next of them that has time. The end of
// ctx ends the weight in hand, too; those before it are kept, as far as others get (SPEC F4).
func (m *Model) PrepareBeside(ctx context.Context, next *atomic.Int64) error {
	if err := m.renew(ctx); err != nil {
		return err
	}
	p, err := newPlan(m, 1, 1, false, plan{}) // a weight's form is the same for every shape
	if err != nil {
		return err
	}
	defer m.tensors.shelf.begin()()
	get := func(s step) (err error) {
		for _, w := range s.bound.Weights {
			if _, err = m.tensors.get(ctx, s.op, w, constants.Options{Linger: -1}); err != nil {
				break
			}
		}
		return err
	}
	for at := next.Add(1) - 1; at < int64(len(p.steps)); at = next.Add(1) - 1 {
		if err := get(p.steps[at]); err != nil {
			return err
		}
	}
	for _, s := range p.steps { // what others have prepared
		if err := get(s); err != nil {
			return err
		}
	}
	return nil
}

// planFor gives the plan of a shape: the one that ran last, or a new one. Where programs serve
// every shape it is that of the tokens there are, without padding.
func (m *Model) planFor(dims []int64, total int) (*plan, error) {
	batch, tokens, shapeless := 1, int(dims[len(dims)-1]), false
	if !m.list.Ragged {
		batch, tokens = int(dims[0]), min(tokens, m.list.MaxTokens)
	} else if total <= m.shapeless {
		tokens, shapeless = total, true
	}
	if p := m.last; p != nil && p.batch == batch && p.tokens == tokens && p.shapeless == shapeless {
		return p, nil
	}
	last := plan{}
	if m.last != nil { // its run has ended
		last = *m.last
	}
	m.last = nil
	p, err := newPlan(m, batch, tokens, shapeless, last)
	if err != nil {
		return nil, err
	}
	m.last = p
	return p, nil
}

// prepare finds or makes the artefact and the weights of every step.
func (m *Model) prepare(ctx context.Context, h *kiln.Group, p *plan, a *Answer) error {
	if m.arena == nil || m.arena.Bytes() < p.arena {
		if m.arena != nil {
			m.arena.Release()
			m.arena = nil
		}
		arena, err := m.exec.Alloc(ctx, p.arena)
		if err != nil {
			return err
		}
		m.arena = arena
	}
	defer clear(m.sources) // another run may be on a device that was opened again
	p.launches, p.arguments = p.launches[:0], p.arguments[:0]
	for i := range p.steps {
		s := &p.steps[i]
		kernel, err := m.artefact(ctx, h, s, a)
		if err != nil {
			return err
		}
		if m.record != nil {
			m.note(h, s)
		}
		from := len(p.arguments)
		if err := m.bind(ctx, p, s); err != nil {
			return err
		}
		p.launches = append(p.launches, gpuexec.Launch{Kernel: kernel, Grid: s.grid, Args: p.arguments[from:len(p.arguments):len(p.arguments)]})
	}
	return nil
}

// bind appends a step's arguments, in the order of ops.Library.
func (m *Model) bind(ctx context.Context, p *plan, s *step) error {
	data := func(at part) { p.arguments = append(p.arguments, gpuexec.PartArg(m.arena, at.offset, at.bytes)) }
	for _, in := range s.bound.Inputs {
		data(p.operand(in))
	}
	for _, w := range s.bound.Weights {
		b, err := m.tensors.get(ctx, s.op, w, constants.Options{})
		if err != nil {
			return err
		}
		p.arguments = append(p.arguments, gpuexec.BufferArg(b))
	}
	data(s.output)
	p.arguments = append(p.arguments, s.values...)
	return nil
}

// artefact finds the kernel of a step at the nearest level that has it.
func (m *Model) artefact(ctx context.Context, h *kiln.Group, s *step, a *Answer) (*gpuexec.Kernel, error) {
	if s.held.Resident() {
		a.Held++
		a.Saved = sums.Add(a.Saved, s.cost)
		return s.held.Value(), nil
	}
	var ok bool
	if s.held, ok = kiln.Refer[*gpuexec.Kernel](h, s.name); ok {
		if a.Session == 0 { // the way to the first name led by session and shape, and the handle keeps it
			a.Session++
		} else {
			a.Group++
		}
		s.cost = s.held.Cost()
		a.Saved = sums.Add(a.Saved, s.cost)
		return s.held.Value(), nil
	}
	source, err := m.source(s)
	if err != nil {
		return nil, err
	}
	var how kiln.Event
	kernel, err := h.Kernel(context.WithValue(ctx, eventKey{}, &how), s.name.String(), m.exec, source)
	if err != nil {
		return nil, err
	}
	s.held, _ = kiln.Refer[*gpuexec.Kernel](h, s.name)
	s.cost = how.Cost
	a.count(how)
	return kernel, nil
}

// alike is what the operations of a run have in common that have one source.
type alike struct {
	first int // see Model.alike
	op    ops.Op
}

// source is a step's program, made once for all that are the same primitive: a new shape
// asks for each of its names.
func (m *Model) source(s *step) (gpuexec.Source, error) {
	of := alike{s.alike, s.op}
	source, made := m.sources[of]
	if made {
		return source, nil
	}
	source, _, err := program(m.exec, m.lib, s.op, s.identity())
	if err == nil {
		m.sources[of] = source
	}
	return source, err
}

// eventKey is where the context of a look-up has the place for its event.
type eventKey struct{}

// Listen is the kiln.Config.Listen of a runtime whose models count how their names
// were answered.
func Listen(e kiln.Event) {
	if at, ok := e.Context.Value(eventKey{}).(*kiln.Event); ok {
		*at = e
	}
}

func (a *Answer) count(how kiln.Event) {
	level := &a.Artefact
	switch {
	case how.Kind == kiln.Hit: // not in the table that the handle read, but by now
		level = &a.Session
	case how.Kind == kiln.Joined, how.Artefact == kiln.Joined:
		level = &a.Joined
	case how.Artefact == kiln.PersistentHit:
		level = &a.Disk
	case how.Artefact == kiln.Miss:
		a.Compiles++
		a.CompileTime = sums.Add(a.CompileTime, how.Cost)
		return
	}
	*level++
	a.Saved = sums.Add(a.Saved, how.Cost)
}

// Products runs the matrix products alone of the shape that ran last, to measure
// them: their outputs mean nothing. Before the first run it is ErrInvalid.
func (m *Model) Products(ctx context.Context) error {
	if m.last == nil {
		return fault.Invalidf("forward: products", "nothing has run yet")
	}
	var products []gpuexec.Launch
	for i, l := range m.last.launches {
		if k := m.last.steps[i].op.Kind; k == ops.MatMul || k == ops.BatchMatMul {
			products = append(products, l)
		}
	}
	return m.exec.Submit(ctx, products...)
}

// Close gives the weights and the arena back. The session stays open.
func (m *Model) Close() {
	m.tensors.close()
	m.abandon()
}
