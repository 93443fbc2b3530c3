package encoder

import (
	"context"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward"
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
		return fault.ErrClosed
	}
	e.mu.queue.push(c)
	for range min(len(e.mu.idle), len(c.texts)) { // nobody waits where a worker is idle
		last := len(e.mu.idle) - 1
		m := e.mu.idle[last]
		e.mu.idle = e.mu.idle[:last]
		go e.work(m)
	}
	e.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		e.leave(c, ctx.Err())
	}
	return c.err
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

// work computes batches with a model until nobody waits.
func (e *Encoder) work(m *forward.Model) {
	var done *batch
	for {
		b, next, changed := e.next(m, done)
		if b == nil {
			return
		}
		if changed {
			_ = e.session.Announce(next...) // SPEC S2; it fails where the session is closing, which Run tells
		}
		e.compute(m, b)
		done = b
	}
}

// next gives a worker its next batch after one that is done, and what to announce if that
// has changed. Where nobody waits the worker is idle from then on, or ends with the encoder.
func (e *Encoder) next(m *forward.Model, done *batch) (b *batch, soon []shapegroups.Shape, changed bool) {
	e.mu.Lock()
	if done != nil {
		e.settle(done)
	}
	texts := e.mu.queue.take()
	if len(texts) == 0 {
		closing := e.mu.closing
		if !closing {
			e.mu.idle = append(e.mu.idle, m)
		}
		e.mu.Unlock()
		if closing {
			e.retire(m)
		}
		return nil, nil, false
	}
	defer e.mu.Unlock()
	b = &batch{texts: texts}
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
		e.mu.announced, changed = soonest, true
		if !soonest.IsZero() {
			soon = append(soon, soonest)
		}
	}
	return b, soon, changed
}

// upcoming is the shape of the batch that comes next, as far as one knows; zero where
// nobody waits or a batch is a text, whose shape no later text waits for.
func (e *Encoder) upcoming() shapegroups.Shape {
	q := &e.mu.queue
	if !q.packs || q.tokens == 0 {
		return shapegroups.Shape{}
	}
	shape, _ := forward.PackedShape(min(q.tokens, q.share())) // above 0
	return shape
}

// settle ends the calls that have all their embeddings.
func (e *Encoder) settle(done *batch) {
	done.cancel()
	e.mu.running = slices.DeleteFunc(e.mu.running, func(b *batch) bool { return b == done })
	for _, t := range done.texts {
		if t.of.left--; t.of.left == 0 {
			t.of.end(nil)
		}
	}
}

// compute computes a batch. Where that fails its texts are computed one by one: what is
// wrong with one is no error of the others.
func (e *Encoder) compute(m *forward.Model, b *batch) {
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
	if len(b.texts) == 1 {
		e.leave(b.texts[0].of, b.texts[0].of.about(b.texts[0].at, err))
		return
	}
	for i := range b.texts {
		if b.ctx.Err() == nil {
			e.compute(m, &batch{texts: b.texts[i : i+1], ids: b.ids[i : i+1], types: b.types[i : i+1], ctx: b.ctx})
		}
	}
}
