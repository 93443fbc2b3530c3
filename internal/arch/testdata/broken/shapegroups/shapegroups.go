// Package shapegroups reads the environment in three ways.
package shapegroups

import (
	system "os"
	. "syscall"
)

func Home() (string, []string) {
	_, _ = system.LookupEnv("A")
	v, _ := Getenv("B")
	return v, system.Environ()
}
