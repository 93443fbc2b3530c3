//go:build linux && (amd64 || arm64)

package onednn

import "github.com/ebitengine/purego"

// dlopen, dlsym and register speak to the system's loader; register makes *fn call what
// is at an address. calls calls what takes integers and pointers alone, quicker.
func dlopen(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }

func register(fn any, at uintptr) { purego.RegisterFunc(fn, at) }

//go:uintptrescapes
func calls(at uintptr, args ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(at, args...)
	return result
}
