//go:build !unix

package engine

import "syscall"

// No signal of these systems: sending one is an error.
const sigStop, sigCont = syscall.Signal(-1), syscall.Signal(-2)
