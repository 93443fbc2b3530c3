//go:build !linux || !(amd64 || arm64)

package nvrtc

import "github.com/kiln-cache/kiln/fault"

// Library is the compiler, which is used on 64-bit Linux only.
type Library struct {
	Path, Version, Build string
	Archs                []int
}

// Open answers ErrUnavailable.
func Open(string) (*Library, error) {
	return nil, failure(fault.ErrUnavailable, "CUDA is used on 64-bit Linux only")
}

// Compile is never reached: there is no Library.
func (*Library) Compile(Request) (Output, error) {
	return Output{}, failure(fault.ErrUnavailable, "CUDA is used on 64-bit Linux only")
}

func (*Library) checked(Request) (Output, error) {
	return Output{}, failure(fault.ErrUnavailable, "CUDA is used on 64-bit Linux only")
}

func bound() {}
