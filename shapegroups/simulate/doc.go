// Package simulate replays a recorded stream of shapes through the policies that
// sessions use, and through Belady's rule as the bound of what any could reach.
//
// A request is a hit if its group is resident. Every group counts one and costs
// the same; a miss registers the group at once, as a session does when nothing
// runs concurrently.
//
// All functions are pure and safe for concurrent use.
package simulate
