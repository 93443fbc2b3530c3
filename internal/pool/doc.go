// Package pool is a number of bytes that several members share, each with a
// floor that the others cannot take.
//
// A floor is set aside whether it is used or not: what a member keeps below its
// floor takes nothing from anybody, and no flood of the others reaches it. What
// members use above their floors comes out of the rest.
//
// A new member's floor is promised at once. Others may use some of it: that is set aside
// as they release it, before anything else.
//
// INVARIANT: the floors as far as they are set aside, what is used above them, and what is granted to claims
// are together within the capacity, at every instant: bytes are reserved before
// they are used, and released after.
//
// A member that finds the pool full claims room. The members that use most above
// their floors are asked to give, as long as that is more than the claimant would
// use itself. A claimant that would use most of all makes room among its own. What
// is released goes to the oldest claim first, so that no member takes what was
// given up for another.
//
// A claim asks MostAsked members at a time, and one more with each answer, for what it lacks
// still. Who has answered and has not given all is asked for no claim until the next one is
// made. A claim on bytes beyond the floor gives up after MostAsked of these. Whatever else is
// done here costs the logarithm of the members and claims.
//
// Nothing here waits and nobody is called with the lock held: asking, giving and
// the end of a claim are messages between the members. Safe for concurrent use.
package pool
