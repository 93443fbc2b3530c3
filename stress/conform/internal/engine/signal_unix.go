//go:build unix

package engine

import "syscall"

const sigStop, sigCont = syscall.SIGSTOP, syscall.SIGCONT
