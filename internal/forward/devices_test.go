package forward_test

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	_ "github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	_ "github.com/kiln-cache/kiln/gpuexec/vulkan"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
)

// Each device gives what cpu gives, up to rounding, for any length; a request's bits
// there are the same alone, padded and in company (E8); and no shape after the first
// compiles anything. onednn rounds differently in each of its forms (E7), and has programs for
// each shape.
func TestDevicesAgree(t *testing.T) {
	for _, name := range ops.Names() {
		if name == cpu.Name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			lib := ops.Find(name) // of oneDNN, the one that is installed
			if d := lib.Devices(bg)[0]; !d.Available {
				t.Skip(d.Reason)
			}
			list, _ := data.Model("minilm_l6_h384")
			here, there := open(t, list), openOn(t, lib, list)
			want, _ := here.model(kiln.SessionConfig{})
			exact, _ := there.model(kiln.SessionConfig{})
			padded, _ := there.model(kiln.SessionConfig{Bucket: geometric(t)})
			var rows [][]int32
			var alone []float32
			for place, n := range []int{1, 7, 16, 33, 64, 100, 128, 201} {
				ids := there.ids(place, n)
				answer := there.run(exact, ids)
				got := answer.Output
				var reference []float64
				for _, v := range here.run(want, ids).Output {
					reference = append(reference, float64(v))
				}
				if d, err := forward.Compare(got, reference); err != nil || !(d.Relative < 1e-4) || d.Absolute == 0 {
					t.Errorf("%d tokens: %+v, %v", n, d, err)
				}
				if name == onednn.Name {
					continue
				}
				if compiled := answer.Compiles > 0; compiled != (place == 0) {
					t.Errorf("%d tokens: %d compiles", n, answer.Compiles)
				}
				if !slices.Equal(there.run(padded, ids).Output, got) {
					t.Errorf("%d tokens: other bits with padding", n)
				}
				if n <= 64 {
					rows, alone = append(rows, ids), append(alone, got...)
				}
			}
			if name == onednn.Name {
				return
			}
			if got := there.run(padded, rows...).Output; !slices.Equal(got, alone) {
				t.Errorf("other bits in a batch, %d values and %d alone", len(got), len(alone))
			}
		})
	}
}

// E7, E8: where a launch says all dimensions, a new number of tokens asks for no kernel, and a request has its bits in
// any batch; where they are the program's, as on onednn, it asks for each.
func TestDevicesKeepKernelsOverShapes(t *testing.T) {
	for _, name := range ops.Names() {
		t.Run(name, func(t *testing.T) {
			lib := ops.Find(name)
			if d := lib.Devices(bg)[0]; !d.Available {
				t.Skip(d.Reason)
			}
			here, there := open(t, tinyList(perToken)), openOn(t, lib, tinyList(perToken))
			want, _ := here.packed(kiln.SessionConfig{})
			m, session := there.packed(kiln.SessionConfig{Bucket: geometric(t)})
			names := lookups(there.run(m, there.ids(0, 5)))
			var rows [][]int32
			var alone []float32
			for place, n := range []int{9, 300, 1, 17} {
				ids := there.ids(place, n)
				a := there.run(m, ids)
				if kept := a.Held == names; kept != m.Packed() {
					t.Errorf("%d tokens: %d of %d kernels were kept", n, a.Held, names)
				}
				var reference []float64
				for _, v := range here.run(want, ids).Output {
					reference = append(reference, float64(v))
				}
				if d, err := forward.Compare(a.Output, reference); err != nil || !(d.Relative < 1e-4) {
					t.Errorf("%d tokens: %+v, %v", n, d, err)
				}
				rows, alone = append(rows, ids), append(alone, a.Output...)
			}
			if !m.Packed() {
				return
			}
			if got := there.run(m, rows...).Output; !slices.Equal(got, alone) || session.Cache().Groups() != 1 {
				t.Errorf("other bits in a batch, or %d groups, want 1", session.Cache().Groups())
			}
		})
	}
}
