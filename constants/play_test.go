package constants

import (
	"context"
	"errors"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
)

// play runs each drawn call on the real cache and on the model.
type play struct {
	r      *rapid.T
	c      *Cache
	e      *Engine
	m      *model
	rec    *record
	owners []pair[*Promise]
	leases []pair[*Lease]
	refs   []pair[*Held]
}

var ctx = context.Background()

func (p *play) get(r *rapid.T) {
	k := drawKey(r)
	if p.m.pending[k] != nil {
		r.Skip("would wait")
	}
	bytes := rapid.Int64Range(0, 5*mib).Draw(r, "bytes")
	cost := time.Duration(rapid.Int64Range(0, 1e10).Draw(r, "cost") + int64(len(p.m.all))) // no ties
	want, how := p.m.get(k, bytes, cost)
	out, err := p.e.GetOrAdd(ctx, k, bytes, Options{Cost: cost, Removed: func(why Removal) {
		p.rec.mu.Lock()
		defer p.rec.mu.Unlock()
		p.rec.removals[want] = append(p.rec.removals[want], why)
	}})
	switch {
	case err != nil:
		r.Fatalf("get: %v", err)
	case out.Lease != nil:
		if how != "hit" || out.Lease.Value() != want {
			r.Fatalf("a hit on %v, the model says %s %p", out.Lease.Value(), how, want)
		}
		p.leases = append(p.leases, pair[*Lease]{out.Lease, want})
	case out.Owner != nil:
		if how != "owner" {
			r.Fatalf("an owner, the model says %s", how)
		}
		p.owners = append(p.owners, pair[*Promise]{out.Owner, want})
	case string(out.Bypass) != how:
		r.Fatalf("bypass %s, the model says %s", out.Bypass, how)
	}
}

// draw takes one out of a list, or skips the step.
func draw[T any](r *rapid.T, list *[]T) T {
	if len(*list) == 0 {
		r.Skip("none")
	}
	i := rapid.IntRange(0, len(*list)-1).Draw(r, "which")
	one := (*list)[i]
	*list = slices.Delete(*list, i, i+1)
	return one
}

func (p *play) fulfil(r *rapid.T) {
	o := draw(r, &p.owners)
	bytes := o.made.bytes
	wrong := rapid.IntRange(0, 4).Draw(r, "wrong size") == 0
	if wrong {
		bytes++
	}
	l, err := o.real.Fulfil(o.made, bytes, func() {
		p.rec.mu.Lock()
		defer p.rec.mu.Unlock()
		p.rec.freed[o.made]++
	})
	if wrong {
		if !errors.Is(err, fault.ErrSize) {
			r.Fatalf("fulfil with another size: %v", err)
		}
		delete(p.m.pending, o.made.key)
		return
	}
	if err != nil || l.Value() != o.made {
		r.Fatalf("fulfil: %v", err)
	}
	p.m.deliver(o.made)
	if l.Resident() == o.made.flushed {
		r.Fatalf("resident %v, flushed meanwhile %v", l.Resident(), o.made.flushed)
	}
	p.leases = append(p.leases, pair[*Lease]{l, o.made})
	if _, err := o.real.Fulfil(nil, bytes, nil); !errors.Is(err, fault.ErrInvalid) {
		r.Fatalf("fulfilled twice: %v", err)
	}
}

func (p *play) abandon(r *rapid.T) {
	o := draw(r, &p.owners)
	delete(p.m.pending, o.made.key)
	o.real.Abandon()
	o.real.Fail(errors.New("again")) // the first counts
}

func (p *play) remove(r *rapid.T) {
	k := drawKey(r)
	if there, err := p.e.Remove(ctx, k); err != nil || there != p.m.removeKey(k) {
		r.Fatalf("remove: %v, %v, the model says otherwise", there, err)
	}
}

func (p *play) capacity(r *rapid.T) {
	capacity, bytes := drawCapacity(r)
	if rapid.Bool().Draw(r, "the device's own") {
		if err := p.c.SetDeviceCapacity(ctx, CPU, 0, capacity); err != nil {
			r.Fatal(err)
		}
	} else if err := p.c.SetCapacity(ctx, CPU, capacity); err != nil {
		r.Fatal(err)
	}
	p.m.capacity = bytes
	p.m.flush(Flushed)
}

func (p *play) end(r *rapid.T) {
	l := draw(r, &p.leases)
	l.made.pins--
	l.real.End()
	l.real.End() // nothing
}

func (p *play) hold(r *rapid.T) {
	if len(p.leases) == 0 {
		r.Skip("none")
	}
	l := rapid.SampledFrom(p.leases).Draw(r, "lease")
	ref, ok := l.real.Hold(nil)
	if ok != (p.m.resident[l.made.key] == l.made) {
		r.Fatalf("hold gives %v", ok)
	}
	if ok {
		l.made.pins++
		p.refs = append(p.refs, pair[*Held]{ref, l.made})
	}
}

func (p *play) drop(r *rapid.T) {
	ref := draw(r, &p.refs)
	ref.made.pins--
	ref.real.Drop()
	ref.real.Drop() // nothing
}

// check compares what can be asked at any time.
func (p *play) check(r *rapid.T) {
	let := make(chan struct{}) // the pins of what has gone go
	p.e.shell.gone.Fence(func() { p.e.shell.idle.Fence(func() { close(let) }) })
	<-let
	if _, err := p.e.Remove(ctx, Key{ID: "no such"}); err != nil { // lets what was told be handled
		r.Fatal(err)
	}
	resident, reserved := p.m.used()
	if p.e.Size() != resident || p.e.Reserved() != reserved || p.e.Len() != int64(len(p.m.resident)) {
		r.Fatalf("size %d, reserved %d, entries %d, the model says %d, %d, %d",
			p.e.Size(), p.e.Reserved(), p.e.Len(), resident, reserved, len(p.m.resident))
	}
	for k, want := range p.m.resident {
		l, ok := p.e.Lookup(k)
		if !ok || l.Value() != want {
			r.Fatalf("%v is not found", k)
		}
		l.End()
	}
	for _, ref := range p.refs {
		if _, live := ref.real.Use(); live != (p.m.resident[ref.made.key] == ref.made) {
			r.Fatalf("a reference says %v", live)
		}
	}
	for _, l := range p.leases {
		if l.real.Value() != l.made || l.real.Resident() != (p.m.resident[l.made.key] == l.made) {
			r.Fatalf("a lease on %v gives %v", l.made, l.real.Value())
		}
	}
	p.rec.mu.Lock()
	defer p.rec.mu.Unlock()
	for t, n := range p.rec.freed {
		if n != 1 || t.pins != 0 {
			r.Fatalf("freed %d times, in use by %d", n, t.pins)
		}
	}
}

// close ends everything and wants every removal told, and every value freed, once.
func (p *play) close() {
	p.m.flush(Closed)
	if err := p.c.Close(ctx); err != nil {
		p.r.Fatal(err)
	}
	for _, l := range p.leases {
		l.made.pins--
		l.real.End()
	}
	for _, ref := range p.refs {
		ref.made.pins--
		ref.real.Drop()
	}
	for _, o := range p.owners {
		o.real.Abandon()
	}
	p.rec.mu.Lock()
	defer p.rec.mu.Unlock()
	for _, t := range p.m.all {
		if !slices.Equal(t.removals, p.rec.removals[t]) {
			p.r.Fatalf("callbacks got %v, want %v", p.rec.removals[t], t.removals)
		}
		if freed := p.rec.freed[t]; t.pins != 0 || freed > 1 || t.done != (freed == 1) {
			p.r.Fatalf("%d pins, delivered %v, freed %d times", t.pins, t.done, freed)
		}
	}
}
