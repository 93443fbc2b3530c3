package spirv_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/spirv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func words(t testing.TB, name string) []uint32 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "testdata", name+".spv"))
	if err != nil {
		t.Fatal(err)
	}
	w, err := spirv.Words(b)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// What a shader declares is read out of its module.
func TestRead(t *testing.T) {
	none := [3]uint32{spirv.NoID, spirv.NoID, spirv.NoID}
	two := []spirv.Binding{{Number: 0, ReadOnly: true}, {Number: 1}}
	for name, want := range map[string]*spirv.Module{
		"axpy":   {Bindings: two, PushBytes: 8, Constants: map[uint32]uint8{0: 4, 1: 4}, LocalSize: [3]uint32{1, 1, 1}, LocalIDs: [3]uint32{0, spirv.NoID, spirv.NoID}},
		"sum":    {Bindings: two, Constants: map[uint32]uint8{}, LocalSize: [3]uint32{128, 1, 1}, LocalIDs: none, SharedBytes: 512},
		"texels": {Bindings: []spirv.Binding{{Number: 0, Texels: true, ReadOnly: true}, {Number: 1}}, Constants: map[uint32]uint8{}, LocalSize: [3]uint32{4, 1, 1}, LocalIDs: none},
		// A matrix, an array of structs and a uniform buffer in the bindings 5, 2 and 3.
		"layouts": {Bindings: []spirv.Binding{{Number: 2}, {Number: 3, Uniform: true, ReadOnly: true}, {Number: 5}}, PushBytes: 116,
			Constants: map[uint32]uint8{3: 8, 7: 4}, LocalSize: [3]uint32{4, 2, 8}, LocalIDs: none},
	} {
		got, err := spirv.Read(words(t, name), "main", nil)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}

// A buffer is only read where each of its members is declared so, in modules as they were
// before SPIR-V 1.3, too, whose storage buffers are uniforms with a decoration.
func TestReadOnly(t *testing.T) {
	const opStruct, opPointer, opVariable, opDecorate, uniform, block, bufferBlock, storage = 30, 32, 59, 71, 2, 2, 3, 12
	for what, c := range map[string]struct {
		change func(op uint32, i []uint32) []uint32
		want   bool // of binding 0
	}{
		"as before SPIR-V 1.3": {want: true, change: func(op uint32, i []uint32) []uint32 {
			switch {
			case op == opPointer && i[2] == storage:
				i[2] = uniform
			case op == opVariable && i[3] == storage:
				i[3] = uniform
			case op == opDecorate && i[2] == block:
				i[2] = bufferBlock
			}
			return i
		}},
		"with a member more": {change: func(op uint32, i []uint32) []uint32 {
			if op == opStruct && len(i) == 3 {
				i[0] += 1 << 16
				i = append(i, i[2])
			}
			return i
		}},
	} {
		module := words(t, "axpy")
		changed := slices.Clone(module[:5])
		for rest := module[5:]; len(rest) > 0; rest = rest[rest[0]>>16:] {
			changed = append(changed, c.change(rest[0]&0xffff, slices.Clone(rest[:rest[0]>>16]))...)
		}
		m, err := spirv.Read(changed, "main", nil)
		if want := []spirv.Binding{{Number: 0, ReadOnly: c.want}, {Number: 1}}; err != nil || !slices.Equal(m.Bindings, want) {
			t.Errorf("%s: %+v, %v; want %+v", what, m, err, want)
		}
	}
}

// What takes something else than buffers in set 0, or texels of something else than float32, is refused with the reason.
func TestUnsupported(t *testing.T) {
	for _, name := range []string{"image", "set", "integers"} {
		if _, err := spirv.Read(words(t, name), "main", nil); !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("%s: %v, want ErrUnsupported", name, err)
		}
	}
}

// E3: a module that was cut anywhere is refused.
func TestCut(t *testing.T) {
	whole := words(t, "sum")
	for n := range whole {
		if _, err := spirv.Read(whole[:n], "main", nil); !errors.Is(err, fault.ErrInvalid) {
			t.Fatalf("cut to %d of %d words: %v, want ErrInvalid", n, len(whole), err)
		}
	}
}

// What is hostile is refused, and soon: an id with two meanings, structs of structs of
// structs.
func TestHostile(t *testing.T) {
	twice := slices.Clone(words(t, "sum"))
	twice = slices.Insert(twice, len(twice)-1, 3<<16|22, 1, 32, 3<<16|22, 1, 32) // OpTypeFloat %1 32
	if _, err := spirv.Read(twice, "main", nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an id that is defined twice: %v, want ErrInvalid", err)
	}
	deep := []uint32{0x07230203, 0x00010500, 0, 100, 0, 5<<16 | 15, 5, 1, 0x6e69616d, 0, 5<<16 | 17<<0}
	deep = deep[:10]
	deep = append(deep, 6<<16|16, 1, 17, 1, 1, 1, 3<<16|22, 2, 32)
	for id := uint32(3); id < 40; id++ {
		deep = append(deep, 12<<16|30, id)
		for range 10 {
			deep = append(deep, id-1)
		}
	}
	deep = append(deep, 4<<16|32, 50, 9, 39, 4<<16|59, 50, 51, 9, 5<<16|54, 60, 1, 0, 61, 1<<16|56)
	m, err := spirv.Read(deep, "main", nil)
	if err != nil || m.PushBytes == 0 {
		t.Errorf("structs of structs: %+v, %v", m, err)
	}
}

// Whatever the words are, reading them ends with a module or a typed error.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"axpy", "sum", "layouts", "image", "set", "texels"} {
		b, err := os.ReadFile(filepath.Join("..", "..", "testdata", name+".spv"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := spirv.Words(b)
		if err == nil {
			_, err = spirv.Read(w, "main", nil)
		}
		if err != nil && !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) {
			t.Error(err)
		}
	})
}
