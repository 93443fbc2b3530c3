// Package actors may use protoactor and start goroutines, yet not show the one
// in its signatures.
package actors

import "github.com/asynkron/protoactor-go/actor"

// Ref holds a foreign type where nobody sees it.
type Ref struct {
	pid *actor.PID
	Own string
}

func New() *Ref {
	go func() {}()
	return &Ref{pid: actor.Spawn()}
}

func (r *Ref) PID() *actor.PID { return r.pid }

func (r *Ref) hidden() *actor.PID { return r.pid }

type Handler func(actor.Context) error

type Table struct {
	ByName map[string][]*actor.PID
	byID   map[int]*actor.PID
}

type Shown struct{ actor.PID }

type Renamed = actor.PID

var Root = actor.Spawn()

type Receiver interface {
	Receive(actor.Context)
}

type inner struct{ Address actor.PID }

// Inner shows a foreign type through a type without a name outside.
func Inner() inner { return inner{} }

func Only[T interface{ *actor.PID }](t T) {}

type Box[T any] struct{ Value T }

func Boxed() Box[actor.PID] { return Box[actor.PID]{} }

func (r *Ref) ask() { r.pid.RequestFuture() }
