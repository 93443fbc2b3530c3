// Package advice observes the shapes that a session is asked for and says what
// would serve them better (SPEC S5).
//
// A Recorder keeps the last requests of a session and raises a warning when its
// capacity is too small for what is asked. Simulate replays a stream of shapes,
// observed or read from a trace, through the policies that sessions use, and
// through Belady's rule as the bound of what any could reach. Advise takes such a
// stream and reports distinct shapes, working set, the hit ratio that each policy
// and capacity would have, and which bucketing loses the least time.
//
// A Recorder belongs to one goroutine. Simulate and Advise are pure and safe for
// concurrent use. Advise replays the stream some fifty times: a stream of 60
// thousand requests takes about a second.
package advice
