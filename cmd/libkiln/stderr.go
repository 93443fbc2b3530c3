//go:build cgo && linux

package main

import (
	"log"
	"syscall"
)

// stderr is where warnings go. os.Stderr would end the program by SIGPIPE, whatever the program
// does with that signal, where nobody reads them.
type stderr struct{}

func (stderr) Write(p []byte) (int, error) { return syscall.Write(2, p) }

func init() { log.SetOutput(stderr{}) }
