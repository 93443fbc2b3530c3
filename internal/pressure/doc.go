// Package pressure keeps what a process's caches hold below a limit in bytes.
//
// Each cache joins a Watch and adds to it what it takes and gives back: one atomic add where
// something is made or freed, nothing on a hit. When the sum grows above the
// limit, a goroutine of the watch asks every cache what it could give and what
// that would cost to make again, and has the cheapest seconds per byte go first:
// above the floors of tenants, then below them, constants last of all. It says
// what it did in one line of the log a shrink.
//
// The sum may be above the limit for as long as a shrink takes, and for longer
// where everything is in use. Then the next attempt waits until it has grown by
// a 64th of the limit again, or was within the limit. Of that it warns once, and
// again only after the limit was met.
package pressure
