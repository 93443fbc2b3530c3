//go:build !linux

package cpu

import "runtime"

// readMachine knows no more than the build does.
func readMachine() hardware { return hardware{model: runtime.GOARCH} }
