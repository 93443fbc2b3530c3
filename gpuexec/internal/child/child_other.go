//go:build !linux

package child

// Children are started on Linux only.
func closeInherited() {}
