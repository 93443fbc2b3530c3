//go:build linux && (amd64 || arm64)

package vulkan

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/vulkan/internal/vk"
)

// E3: a launch waits exactly where it shares a byte, which one of the two writes, with one
// since the last barrier. The model looks at each byte.
func TestHazards(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const bytes = 24
		var h hazards
		var written, touched [3][bytes]bool
		used := 0
		for range rapid.IntRange(1, 60).Draw(t, "launches") {
			var parts []vk.BufferPart
			var writes []bool
			for range rapid.IntRange(0, 6).Draw(t, "parts") {
				from := rapid.Uint64Range(0, bytes-1).Draw(t, "from")
				parts = append(parts, vk.BufferPart{Buffer: rapid.Uint64Range(0, 2).Draw(t, "buffer"), Offset: from, Bytes: rapid.Uint64Range(1, bytes-from).Draw(t, "bytes")})
				writes = append(writes, rapid.IntRange(0, 9).Draw(t, "writes") == 0)
			}
			want := false
			for i, p := range parts {
				for at := p.Offset; at < p.Offset+p.Bytes; at++ {
					want = want || written[p.Buffer][at] || writes[i] && touched[p.Buffer][at]
				}
			}
			want = want || used > 0 && used+len(parts) > mostUses
			if got := h.next(parts, writes); got != want {
				t.Fatalf("a barrier before %v, writing %v: %v, want %v", parts, writes, got, want)
			}
			if want {
				written, touched, used = [3][bytes]bool{}, [3][bytes]bool{}, 0
			}
			used += len(parts)
			for i, p := range parts {
				for at := p.Offset; at < p.Offset+p.Bytes; at++ {
					touched[p.Buffer][at] = true
					written[p.Buffer][at] = written[p.Buffer][at] || writes[i]
				}
			}
			if len(h.used) > max(mostUses, len(parts)) {
				t.Fatalf("%d parts are looked at", len(h.used))
			}
		}
	})
}

// E3: the launches of a transformer's layer have barriers where one needs what another
// wrote, and nowhere else: the three products before the attention have none between them.
func TestBarriersOfALayer(t *testing.T) { both(t, testBarriersOfALayer) }

func testBarriersOfALayer(t *testing.T, b *Backend) {
	const rows, width, inner = 5, 8, 12
	e := open(t, b, 1)
	var layer []gpuexec.Launch
	var last *gpuexec.Buffer
	step := func(op ops.Op, in ...*gpuexec.Buffer) *gpuexec.Buffer {
		tensors, out := buffersOf(op)
		for i := range tensors {
			for j := range tensors[i] {
				if tensors[i][j] == 1 {
					tensors[i][j] = float32(1+i+j%5) / 8
				}
			}
		}
		var l gpuexec.Launch
		l, last = launch(t, e, b, op, tensors, out)
		for i, x := range in {
			if x != nil {
				l.Args[i] = gpuexec.BufferArg(x)
			}
		}
		layer = append(layer, l)
		return last
	}
	norm := ops.New(ops.LayerNorm, rows, width)
	norm.Epsilon = 1e-5
	product := ops.New(ops.MatMul, rows, width, width)
	product.Bias = true
	x := step(norm)
	q, k, v := step(product, x), step(product, x), step(product, x)
	y := step(product, step(ops.New(ops.Attention, rows, 2, width/2, 1), q, k, v))
	y = step(norm, step(ops.New(ops.Add, rows, width, rows), y, x))
	z := step(ops.New(ops.MatMul, rows, inner, width), step(ops.New(ops.GELU, rows, inner), step(ops.New(ops.MatMul, rows, width, inner), y)))
	step(norm, step(ops.New(ops.Add, rows, width, rows), z, y))

	read := func() []float32 {
		got := make([]float32, rows*width)
		if err := e.Read(t.Context(), last, 0, gpuexec.BytesOf(got)); err != nil {
			t.Fatal(err)
		}
		return got
	}
	before := b.counts.barriers.Load()
	if err := e.Submit(t.Context(), layer...); err != nil {
		t.Fatal(err)
	}
	if n := b.counts.barriers.Load() - before; n != int64(len(layer)-3) { // one a launch, but for the first and two of the three
		t.Errorf("%d barriers, want %d", n, len(layer)-3)
	}
	together := read()
	for _, l := range layer {
		if err := e.Submit(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	if alone := read(); !slices.Equal(together, alone) {
		t.Errorf("%v in one sequence, %v in one each", together, alone)
	}
}

// E3: launches that write parts of one buffer need no barrier, nor do those that read one.
// Without a word a buffer is read and written.
func TestBarriersOfParts(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	reads, writes := buffer, buffer
	reads.ReadOnly, writes.WriteOnly = true, true
	said := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, reads, writes))
	silent := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, buffer, buffer))
	x, y := alloc(t, e, 256), alloc(t, e, 4096)
	at := int64(e.Limits().Alignment)
	for _, c := range []struct {
		k    *gpuexec.Kernel
		step int64 // between the parts that two launches write
		want int64
	}{{said, max(at, 64), 0}, {said, 0, 1}, {silent, max(at, 64), 1}} {
		of := func(from int64) gpuexec.Launch {
			return gpuexec.Launch{Kernel: c.k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.PartArg(x, 0, 64), gpuexec.PartArg(y, from, 64)}}
		}
		before := b.counts.barriers.Load()
		if err := e.Submit(t.Context(), of(0), of(c.step)); err != nil {
			t.Fatal(err)
		}
		if n := b.counts.barriers.Load() - before; n != c.want {
			t.Errorf("parts %d bytes apart: %d barriers, want %d", c.step, n, c.want)
		}
	}
}

// E3: the first launch of a recording counts for those behind it, though one before it
// filled another recording.
func TestBarriersBehindARecording(t *testing.T) {
	b := driven(t, Config{})
	e := open(t, b, 1)
	reads, writes := buffer, buffer
	reads.ReadOnly, writes.WriteOnly = true, true
	k := compile(t, e, source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, reads, writes))
	x, y := alloc(t, e, 256), alloc(t, e, 4096)
	var all []gpuexec.Launch
	for i := range vk.MostSets + 2 {
		from := int64(i / vk.MostSets * 1024) // those of a recording write one part
		all = append(all, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: []gpuexec.Arg{gpuexec.PartArg(x, 0, 64), gpuexec.PartArg(y, from, 64)}})
	}
	before := b.counts.barriers.Load()
	if err := e.Submit(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if n := b.counts.barriers.Load() - before; n != vk.MostSets-1+1 {
		t.Errorf("%d barriers, want %d in the first recording and 1 in the second", n, vk.MostSets-1)
	}
}

// E3: a word that the module does not keep is refused: nothing else would find the race.
func TestReadOnlyIsOfTheModule(t *testing.T) {
	e := open(t, driven(t, Config{}), 1)
	reads := buffer
	reads.ReadOnly = true
	if _, err := e.Compile(t.Context(), source(t, gpuexec.Code{Language: SPIRV, Text: texelsModule}, buffer, reads)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("an output that is ReadOnly: %v, want ErrInvalid", err)
	}
}

// E3: Khronos' validation layers, which know what a driver may rely on, say nothing
// about what this package does, synchronisation included. They take a buffer that the module
// does not declare readonly as written, and are silent where one launch writes what the one
// before wrote, since all may be as it should: a missing barrier they see where one of the two
// launches cannot write the buffer.
func TestValidation(t *testing.T) {
	const layer = "VK_LAYER_KHRONOS_validation"
	driven(t, Config{})
	settings := filepath.Join(t.TempDir(), "vk_layer_settings.txt")
	const text = "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\nkhronos_validation.report_flags = error,warn,perf\n" +
		"khronos_validation.log_filename = stdout\nkhronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n"
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VK_INSTANCE_LAYERS", layer) // for the loader of another process: this one's is there
	t.Setenv("VK_LAYER_SETTINGS_PATH", settings)
	t.Setenv("VK_LOADER_DEBUG", "layer")
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestKernels|TestWorkers|TestContract$|TestOperations|TestTexels|TestBarriers", "-test.v")
	out, err := c.CombinedOutput()
	if !strings.Contains(string(out), `Insert instance layer "`+layer) {
		t.Skip("the layer is not installed (Debian: vulkan-validationlayers)")
	}
	if err != nil || strings.Contains(string(out), "msgNum") {
		t.Errorf("%v\n%s", err, out)
	}
}
