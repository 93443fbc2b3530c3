//go:build linux && (amd64 || arm64)

package dl

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// Local is for a library whose names others do not see.
const Local = purego.RTLD_NOW | purego.RTLD_LOCAL

// Open opens a library. The loader tells the reason of a failure to the thread that asked
// for it only, so the goroutine stays on its thread.
func Open(name string, mode int) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}
