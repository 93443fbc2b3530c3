// Package flight is how a room computes a thing once while many ask for it (SPEC
// F1): one computation in progress for a key is a flight. Every room that makes
// something uses it: sessions, artefacts, executors, constants, pipelines.
//
// # The protocol
//
// A call that did not find its value at a glance makes a ride (Ride):
//
//  1. It asks the room (Caller.Ask). The room looks again, in its turn or under its
//     mutex. It finds the value; or a flight of that key on its Desk, and takes the
//     caller aboard (Desk.Join, Flight.Board); or it begins a flight (Desk.Begin,
//     Flight.Start) and has the creator run on another goroutine.
//  2. The caller waits for the end, within its own context, and pins the value
//     (Caller.Take) before the flight lets go of it.
//  3. A caller whose context ends tells the room (Caller.Leave, Desk.Leave), which
//     costs the same however many flights there are. When the last one has left, the
//     flight lingers: its creator is cancelled only if nobody comes within that time
//     (Flight.Linger, Desk.Expire; SPEC F4).
//  4. The creator's end comes back to the room (Desk.End, once). The room keeps the
//     value if it may stay, also where nobody waits any more; it may not after a
//     clear (Desk.VoidAll, SPEC F7). Then the flight wakes its callers
//     (Flight.Finish), once: when a room closes it does so at once, with an error,
//     and the creator's end is then the second.
//  5. A caller that came aboard after the creator was cancelled, or that finds that
//     a blob was refused which another caller had brought, asks again instead of
//     taking an error that is not its own. So does one that the room calls while it
//     waits, having something for it alone (Ticket.Call).
//
// The Desk is a part of the room's pure core: it counts callers, knows keys,
// deadlines and generations, and does nothing. The Flight is what the room's shell
// holds: it wakes, cancels, and finds circles. A room without an actor uses Locked,
// which is both under one mutex.
//
// A flight is joined on its desk as long as it runs, cancelled or not: no second
// one of its key begins while it does. Where nothing that runs can be used any more,
// as on a device that was lost, the room ends all flights (Desk.All, Desk.End), and
// begins others on another desk.
//
// A room whose questions should cost one message and one wake-up has the caller
// bring a flight of its own: if it is not to fly it ends at once, with the value
// that was there (Finish) or with another flight for the caller to go aboard
// (Refer).
//
// INVARIANT: a value given to Finish is released by its release function only
// after every caller aboard has been through Take or has left, so that pinning it
// cannot fail, whatever was evicted meanwhile.
//
// INVARIANT: New is the only call that runs user code, the Value of the context it is
// given: it belongs on the caller's goroutine. All that a turn calls is free of it.
//
// # Marks
//
// A room may have to know, of code that asks it, that it runs under a creator of its own or
// of another room. Mark and With note that beside the identity, and Marked finds it however
// many creators lie between; a value of the context would be looked for in each of them.
//
// # Circles
//
// The context of a flight carries its identity. A wait under a context with an
// identity is an edge of one process-wide graph, whichever rooms the two ends
// belong to; the wait that would close a circle is answered with ErrCycle
// (SPEC F5). Callers without an identity cost nothing. A creator that nobody with
// an identity waits for cannot close a circle, and does not search for one; others,
// and code that owns flights, search on their own goroutine and lock one flight at a
// time. A search goes from both ends, so that a long chain at one of them costs nothing.
package flight
