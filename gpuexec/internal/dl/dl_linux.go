//go:build linux && (amd64 || arm64)

package dl

import (
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// Local is for a library whose names others do not see.
const Local = purego.RTLD_NOW | purego.RTLD_LOCAL

// Open opens a library, by its name or, if that has a folder, the file there. The loader tells the reason of a failure to the thread that asked
// for it only, so the goroutine stays on its thread.
func Open(name string, mode int) (uintptr, error) {
	if strings.Contains(name, "/") {
		if err := Whole(name); err != nil {
			return 0, err
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, mode)
}
