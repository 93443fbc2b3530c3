//go:build linux && (amd64 || arm64)

package onednn

import (
	"syscall"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// available tells whether the system would give n bytes now.
func available(n int64) bool {
	some, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	return err == nil && syscall.Munmap(some) == nil
}

// dlopen, dlsym and register speak to the system's loader; register makes *fn call what
// is at an address. calls calls what takes integers and pointers alone, quicker.
func dlopen(name string) (uintptr, error) {
	return dl.Open(name, dl.Local)
}

func dlsym(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }

func register(fn any, at uintptr) { purego.RegisterFunc(fn, at) }

//go:uintptrescapes
func calls(at uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(at, args...)
	return result
}
