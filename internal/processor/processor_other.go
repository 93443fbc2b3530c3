//go:build !linux

package processor

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// Read gives the model, and of the features what the processor itself says of those that
// code of this module may need, by the names of Linux, sorted.
func Read() (model string, isa []string) {
	for _, f := range []struct {
		name    string
		present bool
	}{
		{"atomics", cpu.ARM64.HasATOMICS},
		{"avx2", cpu.X86.HasAVX2},
		{"avx512f", cpu.X86.HasAVX512F},
		{"bmi1", cpu.X86.HasBMI1},
		{"bmi2", cpu.X86.HasBMI2},
		{"fma", cpu.X86.HasFMA},
		{"popcnt", cpu.X86.HasPOPCNT},
		{"sse4_1", cpu.X86.HasSSE41},
	} {
		if f.present {
			isa = append(isa, f.name)
		}
	}
	return runtime.GOARCH, isa
}
