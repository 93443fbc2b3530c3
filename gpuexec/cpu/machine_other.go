//go:build !linux

package cpu

import (
	"runtime"

	"golang.org/x/sys/cpu"
)

// readMachine knows what the processor itself says, by the names of Linux, of
// what this backend's code may need.
func readMachine() hardware {
	h := hardware{model: runtime.GOARCH}
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
			h.isa = append(h.isa, f.name)
		}
	}
	return h
}
