//go:build linux && (amd64 || arm64)

package vulkan

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// B1: kernels get as much device memory as there is, which is mapped only where the host caches
// it; copies go through memory that the host caches, if there is some. Neither is of a kind that
// takes no buffers.
func TestKindsOfMemory(t *testing.T) {
	const (
		local  = vk.MemoryDeviceLocal
		seen   = vk.MemoryHostVisible | vk.MemoryHostCoherent
		cached = seen | vk.MemoryHostCached
		all    = 1<<32 - 1
	)
	of := func(flagsAndHeaps ...uint32) (list []vk.MemoryType) {
		for pair := range slices.Chunk(flagsAndHeaps, 2) {
			list = append(list, vk.MemoryType{Flags: pair[0], Heap: pair[1]})
		}
		return list
	}
	card := []vk.MemoryHeap{{Bytes: 24 << 30}, {Bytes: 16 << 30}, {Bytes: 256 << 20}}
	for what, c := range map[string]struct {
		types           []vk.MemoryType
		heaps           []vk.MemoryHeap
		taken           uint32
		kernels, copies int
		mapped          bool
	}{
		"a card":                        {of(0, 1, local, 0, seen, 1, cached, 1, local|seen, 2), card, all, 1, 3, false},
		"a card that is seen in full":   {of(0, 1, local, 0, seen, 1, cached, 1, local|seen, 0), card, all, 1, 3, false},
		"a card that caches a part":     {of(local, 0, local|cached, 2), card, all, 0, 1, false},
		"a card without cached memory":  {of(local, 0, seen, 1), card, all, 0, 1, false},
		"a processor":                   {of(local|cached, 0), card[:1], all, 0, 0, true},
		"integrated":                    {of(local, 0, local|seen, 0, local|cached, 0), card[:1], all, 2, 2, true},
		"integrated, nothing is cached": {of(local, 0, local|seen, 0), card[:1], all, 0, 1, false},
		"a kind for images alone":       {of(local, 0, local, 0, cached, 1), card, 0b110, 1, 2, false},
		"cached for images alone":       {of(local, 0, local|cached, 0, seen, 1), card, 0b101, 0, 2, false},
		"no device memory for buffers":  {of(local, 0, cached, 1), card, 0b10, -1, 1, false},
		"nothing to copy through":       {of(local, 0, vk.MemoryHostVisible, 1), card, all, 0, -1, false},
	} {
		if kernels, copies, mapped := kinds(c.types, c.heaps, c.taken); kernels != c.kernels || copies != c.copies || mapped != c.mapped {
			t.Errorf("%s: %d, copies through %d, mapped %t, want %d, %d, %t", what, kernels, copies, mapped, c.kernels, c.copies, c.mapped)
		}
	}
	d, err := driven(t, Config{}).Open(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if of := d.(*device); of.of.Type == vk.TypeCPU && !of.memory.mapped {
		t.Errorf("the memory of a processor is copied: %+v", of.of.Types)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
