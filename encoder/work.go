package encoder

import (
	"context"
	"errors"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/shapegroups"
)

// batch are texts that one worker computes together, with copies of their ids: a call that
// leaves takes its own back.
type batch struct {
	texts  []text
	ids    [][]int32
	types  [][]int32       // nil rows: of type 0
	ctx    context.Context // ends when every call of it has left
	cancel context.CancelFunc
}

// submit has texts computed, and waits for them.
func (e *Encoder) submit(ctx context.Context, c *call) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	if e.mu.closing {
		e.mu.Unlock()
		return errClosed
	}
	alone := len(c.texts) == 1 && len(e.mu.idle) > 0 && e.mu.queue.tokens == 0
	e.mu.queue.push(c)
	if alone {
		m := e.awake()
		t := e.take()
		e.mu.Unlock()
		e.alone(ctx, m, t, c)
		return c.err
	}
	for range min(len(e.mu.idle), len(c.texts)) { // where a worker is idle hardly anybody waits
		m := e.awake()
		go func() { e.work(m, e.next(m, nil)) }()
	}
	e.mu.Unlock()
	until := guard.Context(ctx)
	select {
	case <-c.done:
	case <-until.Done():
		e.leave(c, until.Err())
	}
	return c.err
}

// awake gives an idle worker's model.
func (e *Encoder) awake() *forward.Model {
	last := len(e.mu.idle) - 1
	m := e.mu.idle[last]
	e.mu.idle = e.mu.idle[:last]
	return m
}

// alone has the one text of a call, which is all of a turn, computed by the caller itself:
// where cores are busy, each change of goroutine may have to wait for one.
func (e *Encoder) alone(ctx context.Context, m *forward.Model, t turn, c *call) {
	defer func() { // also where a listener of the runtime ends the goroutine
		if others := e.next(m, t.batch); others.batch != nil {
			go e.work(m, others)
		}
	}()
	until := guard.Context(ctx)
	defer context.AfterFunc(until, func() { e.leave(c, until.Err()) })()
	e.compute(m, t)
}

// leave ends a call, and the batches in which nobody is left: at most one a worker.
func (e *Encoder) leave(c *call, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.queue.leave(c, err)
	for _, b := range e.mu.running {
		if !slices.ContainsFunc(b.texts, func(t text) bool { return !t.of.over }) {
			b.cancel()
		}
	}
}

// turn is a batch, nil where nobody waits, and what to announce before, if that has changed.
type turn struct {
	batch   *batch
	soon    []shapegroups.Shape
	changed bool
}

// work computes batches with a model until nobody waits. Where a listener of the runtime ends
// the goroutine, another one goes on.
func (e *Encoder) work(m *forward.Model, t turn) {
	defer func() {
		if t.batch != nil {
			go e.work(m, e.next(m, t.batch))
		}
	}()
	for t.batch != nil {
		e.compute(m, t)
		t = e.next(m, t.batch)
	}
}

// next gives a worker its next turn after a batch that is done. Where nobody waits the worker
// is idle from then on, or ends with the encoder.
func (e *Encoder) next(m *forward.Model, done *batch) turn {
	e.mu.Lock()
	defer e.mu.Unlock()
	if done != nil {
		e.settle(done)
	}
	t := e.take()
	switch {
	case t.batch != nil:
	case e.mu.closing:
		go e.retire(m)
	default:
		e.rest(m)
	}
	return t
}

// take takes the next batch from the line. The lock is held.
func (e *Encoder) take() (t turn) {
	texts := e.mu.queue.take()
	if len(texts) == 0 {
		return t
	}
	b := &batch{texts: texts}
	t.batch = b
	b.ctx, b.cancel = context.WithCancel(context.Background())
	for _, t := range texts {
		b.ids = append(b.ids, slices.Clone(t.of.texts[t.at]))
		b.types = append(b.types, nil)
		if t.of.types != nil {
			b.types[len(b.types)-1] = t.of.types[t.at]
		}
	}
	e.mu.running = append(e.mu.running, b)
	if soonest := e.upcoming(); soonest != e.mu.announced {
		e.mu.announced, t.changed = soonest, true
		if !soonest.IsZero() {
			t.soon = append(t.soon, soonest)
		}
	}
	return t
}

// upcoming is the shape of the batch that comes next, as far as one knows; zero where
// nobody waits or a batch is a text, whose shape no later text waits for.
func (e *Encoder) upcoming() shapegroups.Shape {
	q := &e.mu.queue
	if !q.packs || q.tokens == 0 {
		return shapegroups.Shape{}
	}
	shape, _ := q.shape(min(q.tokens, q.share())) // above 0
	return shape
}

// settle ends the calls that have all their embeddings, and those that have none of a text because
// its goroutine was ended.
func (e *Encoder) settle(done *batch) {
	done.cancel()
	e.mu.running = slices.DeleteFunc(e.mu.running, func(b *batch) bool { return b == done })
	for _, t := range done.texts {
		if t.of.out[t.at] == nil && !t.of.over {
			e.mu.queue.leave(t.of, t.of.about(t.at, fault.ErrGoexit))
		}
		if t.of.left--; t.of.left == 0 {
			t.of.end(nil)
		}
	}
}

// compute computes the batch of a turn.
func (e *Encoder) compute(m *forward.Model, t turn) {
	if t.changed {
		_ = e.session.Announce(t.soon...) // SPEC S2; it fails where the session is closing, which Run tells
	}
	e.run(m, t.batch)
}

// run computes a batch. Where that fails its texts are computed one by one: what is
// wrong with one is no error of the others.
func (e *Encoder) run(m *forward.Model, b *batch) {
	a, err := m.RunTyped(b.ctx, b.ids, b.types)
	if err == nil {
		rows := a.Output
		for i, t := range b.texts {
			n := len(b.ids[i]) * e.info.Dimensions
			t.of.out[t.at] = t.of.finish(rows[:n])
			rows = rows[n:]
		}
		return
	}
	if errors.Is(err, fault.ErrClosed) {
		err = errOver // of the session or the executor, which the caller does not know
	}
	if len(b.texts) == 1 {
		e.leave(b.texts[0].of, b.texts[0].of.about(b.texts[0].at, err))
		return
	}
	for i := range b.texts {
		if b.ctx.Err() == nil {
			e.run(m, &batch{texts: b.texts[i : i+1], ids: b.ids[i : i+1], types: b.types[i : i+1], ctx: b.ctx})
		}
	}
}
