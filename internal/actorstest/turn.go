package actorstest

import (
	"runtime"
	"strings"
)

// InTurn reports whether the caller runs in a turn of an actor.
func InTurn() bool {
	var at [64]uintptr
	frames := runtime.CallersFrames(at[:runtime.Callers(2, at[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.Contains(f.Function, "/actors.(*Ref[") && strings.HasSuffix(f.Function, ".turn") {
			return true
		}
	}
	return false
}
