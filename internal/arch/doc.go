// Package arch checks the shape of this module:
//
//   - arrow, foreign: which room may import which, and which foreign module
//   - environment, goroutine, library: who may read the environment or start a
//     goroutine, and what of the actor library nobody uses
//   - size, doc: how large files and packages get, and that packages say what they own
//   - surface: public signatures name no foreign and no internal type
//   - core: no method of a pure core uses a context, a channel, an actor, a lock or a clock
//   - sibling: no function is exported that only another room needs
//   - word: one word for one thing (the table in docs/HOUSE.md)
//   - packages, identifiers: how much a user can meet
//
// Its test runs the checks over the whole tree, and over testdata/broken, where
// each of them must find what is wrong.
//
// The checks of a Tree work on syntax, so they see every file whatever its build
// constraints. Surface and the checks of a Program need types, and so see the
// files of the platform that they run on.
//
// Nothing is cached and nothing is shared: the functions are safe for
// concurrent use.
package arch
