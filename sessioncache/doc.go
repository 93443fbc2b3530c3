// Package sessioncache keeps the values of one session: by input shape a group,
// and in each group values by name. A session is one predictor, executor or
// tenant. Nothing of it depends on which goroutine calls (SPEC section 5).
//
//	group, err := session.Group(ctx, shape) // one request; keep it for the model run
//	defer group.Close()
//	ref, event, err := group.Get(ctx, "matmul.7", sessioncache.Options{}, compile)
//
// # What it owns
//
// The session's actor is the only writer: it registers and evicts groups, puts
// and removes names, credits owners, keeps the budgets in groups and bytes, and
// runs the eviction policy of package internal/policy. A name owns its Value,
// which is freed once: after it has ceased to be resident and its last lease has
// ended. Group.Take hands that duty to the caller.
//
// # Reading
//
// View, Lookup, LookupID and the methods of Ref walk published tables: no
// lock, no mailbox, no allocation, no clock, no log. Three kinds of use:
//
//   - a Ref, from any lookup, is uncounted. Value and Resident are safe at any
//     time; what a value holds outside of Go's memory may be freed once the ref
//     is not resident, so pin it with Acquire before use;
//   - a Lease pins one value until End;
//   - a Group, from Session.Group, leases a whole group: no value that was seen
//     through it is freed before its Close, whatever is evicted, overwritten or
//     reset meanwhile. A group that is evicted goes on serving its open Groups, and is
//     registered again when its shape is asked for, if what it holds fits.
//
// # Ordering
//
// A call that has returned is seen by every call that begins afterwards, from
// any goroutine. A group disappears at once, for readers and in the counts.
// Eviction comes before registration, so capacity holds at every instant. Uses
// are noted in order; the policy sees them before its next decision, exactly
// where calls do not overlap. A call for very many groups or names takes several turns:
// it covers what was there before it, and other calls may come between.
//
// # Tenants
//
// Sessions may share a Pool of bytes, each with a Floor that others cannot take
// and its own capacities as a cap. A session that finds the pool full puts the
// value aside and asks the sessions that hold more above their floors. Each gives
// whole groups in a turn of its own; then the value is kept. A session that holds
// most itself evicts groups of its own. No turn waits for another session's turn.
// Where the others hold less than a value needs, the value is not kept. Without a
// pool a write costs nothing more.
//
// # Memory
//
// The memory limit of a kiln.Runtime is told of every byte from the making of a
// value to its free. It takes back groups that nobody uses, by the policy, above
// the floor first.
//
// # Failure
//
// A creator's error, panic or Goexit reaches every caller that waits for it, and
// nothing is kept. What a creator makes after its last caller has left is kept; it
// goes on for Config.Linger (SPEC F4). A value that can never fit is handed out and not kept. A panic in a
// Value's Free is logged and goes no further.
//
// # Testing
//
// Config.Hash may be as bad as a test likes. The core, the type state, is pure:
// the scripts in testdata play it, event in, effects out. model_test.go compares a
// whole session with a naive model; hammer_test.go tests what is claimed about
// concurrency. state.go, making.go, writing.go, names.go, share.go, group.go, entry.go
// and call.go are the core; session.go, handle.go, control.go, actor.go, messages.go,
// tenant.go and bin.go the shell around it.
package sessioncache
