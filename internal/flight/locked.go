package flight

import (
	"context"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/internal/guard"
)

// Locked is a Desk and its flights for a room without an actor, whose state lies
// under one mutex. Set the fields before the first Ride. Safe for concurrent use.
type Locked[K comparable, V any] struct {
	Mu    sync.Locker       // of the room
	Lend  func(fn func())   // runs a creator on another goroutine; called with Mu held
	Scope any               // names the room, with the key, in circles
	desk  Desk[K, *held[V]] // under Mu
}

// held is a flight on a Locked desk.
type held[V any] struct {
	Seats
	Flight[V]
	blob bool
}

// Want is what one caller of a Locked room wants. The functions marked so are
// called with the room's mutex held.
type Want[K comparable, V any] struct {
	Key    K
	Name   string        // of the key, for errors
	Linger time.Duration // SPEC F4
	Blob   bool          // Make loads a blob that this caller brought

	Look    func() (found bool, err error)       // locked: takes what is there; an error ends the call
	Make    func(ctx context.Context) (V, error) // the creator
	Keep    func(v V)                            // locked: enters what may stay
	Take    func(v V)                            // pins it for the caller
	Release func(v V)                            // gives the flight's own hold on v back; may be nil
}

// Role is what a caller turned out to be.
type Role int

// The roles.
const (
	None   Role = iota
	Found       // the value was there
	Began       // this caller's creator made it
	Joined      // another's did
)

// Ride brings a caller to the value of a key: the one that is there, that of the
// flight under way, or that of a new flight.
//
// INVARIANT: a flight is on the desk from before its creator starts until its
// value was kept, under one hold of the mutex. So two creators of a key never run
// at once, and a caller that finds no flight finds the value.
func (l *Locked[K, V]) Ride(ctx context.Context, want Want[K, V]) (Role, error) {
	r := &rider[K, V]{room: l, want: want}
	_, err := Ride(ctx, r)
	return r.role, err
}

// Strand ends every flight with an error for those who wait, and has the creators
// end. Called with Mu held.
func (l *Locked[K, V]) Strand(err error) {
	var nothing V
	for key, f := range l.desk.listed {
		l.desk.End(key, f)
		f.Finish(nothing, err, nil)
		f.Cancel()
	}
}

// VoidAll keeps the results of all flights under way from being kept. Called with
// Mu held.
func (l *Locked[K, V]) VoidAll() { l.desk.VoidAll() }

// rider is one caller of a Locked room.
type rider[K comparable, V any] struct {
	room   *Locked[K, V]
	want   Want[K, V]
	role   Role
	flight *held[V]
}

func (r *rider[K, V]) Ask(ctx context.Context) (Ticket[V], error) {
	l := r.room
	fresh := &held[V]{blob: r.want.Blob}
	fresh.Begin(ctx, l.Scope, r.want.Name) // the context's Value is user code: not under the mutex
	l.Mu.Lock()
	defer l.Mu.Unlock()
	found, err := r.want.Look()
	if err != nil {
		return Ticket[V]{}, err
	}
	if found {
		r.role = Found
		return Ticket[V]{}, nil
	}
	if f, late, there := l.desk.Join(r.want.Key, r.want.Linger); there {
		f.Board()
		r.role, r.flight = Joined, f
		return Ticket[V]{Flight: &f.Flight, Late: late, Others: f.blob}, nil
	}
	l.desk.Begin(r.want.Key, fresh, r.want.Linger)
	fresh.Start()
	r.role, r.flight = Began, fresh
	l.Lend(r.run)
	return Ticket[V]{Flight: &fresh.Flight}, nil
}

func (r *rider[K, V]) Take(v V) { r.want.Take(v) }

func (r *rider[K, V]) Leave(Ticket[V]) {
	l, f := r.room, r.flight
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if alone, linger := l.desk.Leave(f, time.Now()); alone {
		f.Linger(linger, func() {
			l.Mu.Lock()
			defer l.Mu.Unlock()
			if l.desk.Expire(f, time.Now()) {
				f.Cancel()
			}
		})
	}
}

// run is the life of a creator, on a goroutine of its own.
func (r *rider[K, V]) run() {
	f, want := r.flight, &r.want
	var v V
	guard.Guard(func() (err error) {
		v, err = want.Make(f.Context())
		return err
	}, func(err error) {
		f.Settle()
		r.land(v, err)
	})
}

// land ends the flight with what the creator made. If Keep panics, that is the flight's
// error and nothing is kept.
func (r *rider[K, V]) land(v V, err error) {
	l, f, want := r.room, r.flight, &r.want
	made, first := err == nil, false
	guard.Guard(func() error {
		l.Mu.Lock()
		defer l.Mu.Unlock()
		var keep bool
		if first, keep = l.desk.End(want.Key, f); keep && made {
			want.Keep(v)
		}
		return err
	}, func(err error) {
		if first {
			f.Finish(v, err, want.Release)
		}
		if made && (err != nil || !first) && want.Release != nil { // not kept, or closed meanwhile
			want.Release(v)
		}
	})
}
