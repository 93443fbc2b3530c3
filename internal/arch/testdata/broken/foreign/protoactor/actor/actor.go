// Package actor stands in for the real one.
package actor

type PID struct{ ID string }

type Context interface{ Self() *PID }

func Spawn() *PID { return new(PID) }

func (*PID) RequestFuture() {}
