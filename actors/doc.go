// Package actors gives the rooms typed actors: a Ref that takes one kind of
// message, requests with a one-shot Reply, and goroutines lent for user code.
// It is the only package that knows the actor library underneath.
//
// # Ordering
//
// An actor handles its messages one at a time. Messages of one sender are
// handled in the order sent; across senders and across actors nothing is
// promised. Stop lets everything sent before it be handled first.
//
// # Concurrency
//
// Ref, Reply and the functions here are safe for concurrent use. A handler
// runs on one goroutine at a time: one that is lent, or that of a caller of Ask or Do
// where nobody else handles messages. It must not block: no compile, disk, device
// or user code in a turn, and never an Ask (two actors that ask each other
// would wait for ever). Nor may it call runtime.Goexit, which would end the
// actor's goroutine in the middle of its mailbox. Work that takes longer is
// given to Go and comes back as a message.
//
// # Failure
//
// A handler that panics loses that message only: its request is answered with
// the panic as an error (see Failer), the handler is called for the next one,
// and what the room keeps outside the handler is untouched. A request whose
// actor stops is answered with ErrClosed, one beyond the admission limit with
// ErrOverloaded before it enters the mailbox.
//
// The library's futures, receive timeouts and bounded mailboxes are not used:
// they were measured to race, to lose messages or to spin.
package actors
