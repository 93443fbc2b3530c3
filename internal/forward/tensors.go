package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/hidden"
)

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// backendID is this package's number among the packages that prepare constants.
const backendID = 0x656e636f646572 // "encoder"

// tensors are the prepared weights of one model.
type tensors struct {
	exec   *gpuexec.Executor
	lib    ops.Library
	engine *constants.Engine
	source *Weights
	shelf  shelf
	held   map[string]*tensor
	count  Constants

	restarts int64 // of the device, before what is held
}

// Constants counts how a model came by its weights.
type Constants struct {
	Hits   int64 // found prepared in the constant cache, or prepared by another model meanwhile
	Owners int64 // prepared by this model, for the cache
	Bypass int64 // prepared by this model, for itself alone
}

// tensor is a weight on the device, held by a lease of the constant cache.
type tensor struct {
	key    constants.Key
	lease  *constants.Lease
	cached bool            // false: this model's own, which counts to no capacity
	watch  *constants.Held // see Watch; nil where nobody does
}

// end lets the weight go.
func (t *tensor) end() {
	if t.watch != nil {
		t.watch.Drop()
	}
	t.lease.End()
}

func (t *tensor) buffer() *gpuexec.Buffer { return t.lease.Value().(*gpuexec.Buffer) }

// get gives the weight in the form that op wants, from the constant cache: one
// model of the process prepares it (SPEC T3). A weight that was flushed is let go
// and asked for again.
func (ts *tensors) get(ctx context.Context, op ops.Op, w oplist.Weight, opts constants.Options) (*gpuexec.Buffer, error) {
	if t := ts.held[w.Name]; t != nil {
		if !t.cached || t.lease.Resident() {
			return t.buffer(), nil
		}
		t.end()
		delete(ts.held, w.Name)
	}
	form, err := ts.form(op, w)
	if err != nil {
		return nil, err
	}
	identity, err := ts.source.set.Identity(ctx, w.Name)
	if err != nil {
		return nil, err
	}
	// The executor and its restarts are in the key, so that nobody finds a buffer of another
	// device, or one that was lost (SPEC K5, E1).
	key := constants.Key{Backend: backendID, ID: constants.Content([]byte(identity), []byte(form.Format), fmt.Append(nil, w.Shape, ts.exec.Stats().Number, ts.restarts))}
	place := ts.shelf.place(identity, form, w)
	var packing time.Duration // 0: it is mapped from there, or not prepared here
	owned := false
	lease, cached, err := ts.engine.Get(ctx, key, form.Bytes, opts,
		func(ctx context.Context) (constants.Value, error) {
			owned = true
			if b := place.take(ctx, ts.exec, form.Bytes); b != nil {
				return constants.Value{Any: b, Bytes: form.Bytes, Free: b.Release}, nil
			}
			began := time.Now()
			v, err := ts.prepare(ctx, form, w)
			packing = time.Since(began)
			return v, err
		})
	if err != nil {
		return nil, err
	}
	switch {
	case !cached:
		ts.count.Bypass++
	case owned:
		ts.count.Owners++
	default:
		ts.count.Hits++
	}
	if packing > 0 {
		ts.shelf.miss(place, w.Name, packing)
	}
	t := &tensor{key: key, lease: lease, cached: cached}
	ts.held[w.Name] = t
	return t.buffer(), nil
}

func (ts *tensors) form(op ops.Op, w oplist.Weight) (ops.Prepared, error) {
	if w.Role == oplist.Kernel {
		return ts.lib.Prepare(op)
	}
	return ops.Prepared{Format: "float32", Bytes: 4 * int64(w.Elements())}, nil
}

// fill writes numbers as the device reads them.
func fill(dst []byte, values []float32) {
	if littleEndian {
		copy(dst, gpuexec.BytesOf(values))
		return
	}
	for i, v := range values {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}

func (ts *tensors) prepare(ctx context.Context, form ops.Prepared, w oplist.Weight) (constants.Value, error) {
	b, err := ts.exec.Alloc(ctx, form.Bytes)
	if err != nil {
		return constants.Value{}, err
	}
	// The executor calls it: whoever closes that takes the buffer's memory away.
	write := func(into []byte) error { return ts.write(ctx, into, form, w) }
	if err := hidden.Fill(ctx, b, write); err != nil {
		b.Release()
		return constants.Value{}, err
	}
	return constants.Value{Any: b, Bytes: form.Bytes, Free: b.Release}, nil
}

// write writes the weight in its form. A table, which may have a million rows, ends with ctx.
func (ts *tensors) write(ctx context.Context, into []byte, form ops.Prepared, w oplist.Weight) error {
	switch {
	case w.Role != oplist.Kernel:
		return ts.source.set.Pieces(w.Name, func(values []float32) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			fill(into, values)
			into = into[4*len(values):]
			return nil
		})
	case form.FillTurned == nil:
		return ts.source.set.Use(w.Name, func(values []float32) error { return form.Fill(into, values) })
	}
	return ts.source.set.UseStored(w.Name, func(values []float32, turned bool) error {
		if turned {
			return form.FillTurned(into, values)
		}
		return form.Fill(into, values)
	})
}

// LetGo lets weights go that are not in the constant cache any more, which else go when they are
// wanted next: their memory is given back. It gives their number.
func (m *Model) LetGo() (n int) {
	for name := range m.tensors.held {
		if m.LetGoOf(name) {
			n++
		}
	}
	return n
}

// LetGoOf is LetGo of one weight, and reports whether it went.
func (m *Model) LetGoOf(weight string) bool {
	t := m.tensors.held[weight]
	if t == nil || !t.cached || t.lease.Resident() {
		return false
	}
	t.end()
	delete(m.tensors.held, weight)
	return true
}

// Watch has replaced called, on another goroutine, with the name of each weight that this model
// holds when Keep of whatever model replaces it: models of several encoders hold it. Of one that
// was replaced before nobody is told.
func (m *Model) Watch(replaced func(weight string)) {
	for name, t := range m.tensors.held {
		if t.watch != nil {
			continue
		}
		t.watch, _ = t.lease.Hold(func(why constants.Removal) {
			if why == constants.Removed {
				replaced(name)
			}
		})
	}
}

// renew lets go of what was lost with the device, if it was opened again: it is made
// anew (SPEC E1).
func (m *Model) renew(ctx context.Context) error {
	restarts := m.exec.Stats().Restarts
	if restarts == m.tensors.restarts {
		return nil
	}
	m.abandon()
	if err := m.tensors.discard(ctx); err != nil {
		return err
	}
	m.tensors.restarts = restarts
	return nil
}

// discard takes what is lost out of the cache, too.
func (ts *tensors) discard(ctx context.Context) error {
	for name, t := range ts.held {
		if t.cached && t.lease.Resident() {
			if _, err := ts.engine.Remove(ctx, t.key); err != nil {
				return err
			}
		}
		t.end()
		delete(ts.held, name)
	}
	return nil
}

// close lets every weight go.
func (ts *tensors) close() {
	for _, t := range ts.held {
		t.end()
	}
	clear(ts.held)
}
