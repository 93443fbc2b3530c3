// Package gpuexec knows a backend, which it must not.
package gpuexec

import _ "github.com/kiln-cache/kiln/gpuexec/cuda"

func Start() { go func() {}() }
