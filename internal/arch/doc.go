// Package arch checks the shape of this module: which room may import which,
// which foreign module may be used where, who may read the environment or start
// a goroutine, what of the actor library is left alone, what public signatures
// may name, and how large files and packages get. Its test runs the checks over
// the whole tree.
//
// All checks but one work on syntax, so they see every file whatever its build
// constraints. Surface, which asks what types a public package shows, needs
// them resolved and so sees the files of the platform it runs on.
//
// Nothing is cached and nothing is shared: the functions are safe for
// concurrent use.
package arch
