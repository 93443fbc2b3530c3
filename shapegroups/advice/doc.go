// Package advice observes the shapes that a session is asked for and says what
// would serve them better (SPEC S5).
//
// A Recorder keeps the last requests of a session and raises a warning when its
// capacity is too small for what is asked. Advise takes a stream, observed or
// read from a trace, and reports distinct shapes, working set, the hit ratio that
// each policy and capacity would have, and which bucketing loses the least time.
//
// A Recorder belongs to one goroutine. Advise is pure and safe for concurrent
// use; it replays the stream through the policies some fifty times, so that a
// stream of 60 thousand requests takes about a second.
package advice
