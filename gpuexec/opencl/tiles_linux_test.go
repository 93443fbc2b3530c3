//go:build linux && (amd64 || arm64)

package opencl

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/devicetest"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/internal/generaltest"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// limited are those of a device that has a tile in local memory if it may have that many
// items in a group, and bytes of it.
func limited(items int, local int64) gpuexec.Limits {
	return gpuexec.Limits{MaxItems: items, MaxBlock: gpuexec.Size{items, 1, 1}, MaxLocal: local}
}

// tiled are backends as if their devices were no processors, by the side of their tiles.
var tiled = map[int64]backend{64: {other: limited(128, 8256)}, 32: {other: limited(127, 32<<10)}}

// The tile is the largest that the limits allow, each of them; none where none fits.
func TestTilesByLimits(t *testing.T) {
	flat := limited(1024, 32<<10)
	flat.MaxBlock[0] = 32
	thin := limited(1024, 32<<10)
	thin.MaxItems = 32
	for want, all := range map[int64][]gpuexec.Limits{
		64: {limited(1024, 32<<10), limited(128, 8256)},
		32: {limited(127, 32<<10), limited(128, 8255), limited(32, 4160), flat, thin},
		0:  {limited(31, 32<<10), limited(1024, 4159), {}},
	} {
		for _, l := range all {
			if got := side(l); got != want {
				t.Errorf("%+v: tiles of %d, want %d", l, got, want)
			}
		}
	}
}

// The tile is that of the device that the operations are written for; a processor, and a
// device that is not available or not there, has none.
func TestTilesOfTheDevice(t *testing.T) {
	was := listed
	defer func() { listed = was }()
	const gpu = 4
	of := func(kind uint64, available bool, items int) found {
		return found{kind: kind, limits: limited(items, 32<<10), info: gpuexec.DeviceInfo{Available: available}}
	}
	listed = func() []found {
		return []found{of(gpu, true, 128), of(gpu, true, 64), of(gpu, true, 16), of(gpu, false, 128), of(typeCPU, true, 128)}
	}
	for device, want := range map[int]int64{-1: 0, 0: 64, 1: 32, 2: 0, 3: 0, 4: 0, 5: 0} {
		if got := New(Config{Device: device}).(backend).side(); got != want {
			t.Errorf("device %d has tiles of %d, want %d", device, got, want)
		}
		if got, want := (backend{cfg: Config{KnownBlobs: "x"}}).For(device, ""), New(Config{KnownBlobs: "x", Device: device}); got != want {
			t.Errorf("for device %d: %+v, want %+v", device, got, want)
		}
	}
}

// K4: products of another tile have another source, whose blocks are one for its launches;
// other operations, and products where no tile fits, have the source that processors have.
func TestSourcesOfTiles(t *testing.T) {
	processors := backend{other: limited(1, 1)}
	sourceOf := func(b backend, op ops.Op) gpuexec.Source {
		src, err := b.Source(op)
		if err != nil {
			t.Fatal(err)
		}
		return src
	}
	for side, b := range tiled {
		generaltest.OneSource(t, b)
		for _, op := range generaltest.Programs() {
			product := op.Kind == ops.MatMul || op.Kind == ops.BatchMatMul
			mine, block := sourceOf(b, op), 1
			if product {
				block = int(side * side / 32)
			}
			if other := sourceOf(processors, op); (mine.Key == other.Key) == product {
				t.Errorf("%s in tiles of %d has key %s, on processors %s", op, side, mine.Key, other.Key)
			}
			if code := mine.Spec.(gpuexec.Code); code.Block != (gpuexec.Size{block}) {
				t.Errorf("%s in tiles of %d has blocks of %v, want %d", op, side, code.Block, block)
			}
			if next := sourceOf(tiled[96-side], op); (mine.Key == next.Key) == product {
				t.Errorf("%s in tiles of %d has key %s, in others %s", op, side, mine.Key, next.Key)
			}
			for i := range op.Kind.Dims() {
				large := op
				large.Dims[i] <<= 24
				if grid, _ := b.Launch(large); slices.Max(grid[:]) >= 1<<16 {
					t.Errorf("%s: a grid of %v", large, grid)
				}
			}
		}
	}
}

// E8: the operations are right with tiles.
func TestOperationsInTiles(t *testing.T) {
	needDevice(t)
	devicetest.Operations(t, tiled[64]) // the other sides have the same bits, see below
}

// E8: a product in tiles has the bits that it has on processors: whether its sides are
// multiples of a tile or not, and whatever number of groups shares the tiles. The sign of a sum
// that rounds to zero is one of the bits.
func TestTilesGiveTheSameBits(t *testing.T) {
	needDevice(t)
	product, scores, mixed := ops.New(ops.MatMul), ops.New(ops.BatchMatMul), ops.New(ops.BatchMatMul)
	product.Bias, scores.TransposeB, scores.Scale, mixed.MaskK = true, true, 0.3, true
	for side, b := range tiled {
		for name, op := range map[string]ops.Op{"product": product, "scores": scores, "mixed": mixed} {
			t.Run(fmt.Sprintf("%s%d", name, side), func(t *testing.T) {
				e := generaltest.Open(t, b, 1)
				plain, tiles := programOf(t, e, backend{}, op), programOf(t, e, b, op)
				for _, d := range [][]int64{{1, 1, 1}, {31, 15, 33}, {64, 16, 64}, {63, 17, 65}, {130, 40, 97}} {
					if copy(op.Dims[:], []int64{2, 2}); op.Kind == ops.MatMul {
						copy(op.Dims[:], d)
					} else {
						copy(op.Dims[2:], d)
					}
					grid, _ := backend{}.Launch(op)
					own, _ := b.Launch(op)
					want := launched(t, e, plain, op, grid)
					for _, grid := range []gpuexec.Size{own, {1, 1, 1}, {1, 2, 1}, {2, 1, 3}} {
						if got := launched(t, e, tiles, op, grid); !bytes.Equal(gpuexec.BytesOf(got), gpuexec.BytesOf(want)) {
							t.Errorf("%s, by a grid of %v: other numbers", op, grid)
						}
					}
				}
				if _, err := tiles.Blob(bg); err != nil { // after a run with all numbers 0
					t.Error(err)
				}
			})
		}
	}
}

// programOf gives the program of an operation.
func programOf(t *testing.T, e *gpuexec.Executor, b backend, op ops.Op) *gpuexec.Kernel {
	t.Helper()
	for i := range op.Kind.Dims() {
		op.Dims[i] = 1
	}
	src, err := b.Source(op)
	if err != nil {
		t.Fatal(err)
	}
	return generaltest.Compile(t, e, src)
}

// launched gives what a product of the same numbers is by a program.
func launched(t *testing.T, e *gpuexec.Executor, k *gpuexec.Kernel, op ops.Op, grid gpuexec.Size) []float32 {
	t.Helper()
	rnd := rand.New(rand.NewPCG(1, 2))
	numbers := func(n int64) []float32 {
		list := make([]float32, n)
		for i := range list {
			if list[i] = float32(rnd.NormFloat64()); 4*int64(i)/n == 2 {
				list[i] *= 1e-30 // products of two of these are zeros of either sign
			}
		}
		return list
	}
	d := op.Dims
	var args []gpuexec.Arg
	if op.Kind == ops.MatMul {
		panels := numbers(d[1] * ((d[2] + panel - 1) / panel) * panel)
		args = append(args, gpuexec.BufferArg(generaltest.Upload(t, e, numbers(d[0]*d[1]))), gpuexec.BufferArg(generaltest.Upload(t, e, panels)),
			gpuexec.BufferArg(generaltest.Upload(t, e, numbers(d[2]))))
	} else {
		args = append(args, gpuexec.BufferArg(generaltest.Upload(t, e, numbers(d[0]*d[1]*d[2]*d[3]))), gpuexec.BufferArg(generaltest.Upload(t, e, numbers(d[0]*d[1]*d[3]*d[4]))),
			gpuexec.BufferArg(generaltest.Upload(t, e, []int32{-1, int32(d[3]/2 + 1)})))
	}
	out := generaltest.Upload(t, e, slices.Repeat([]float32{7}, int(op.Elements())))
	args = append(append(args, gpuexec.BufferArg(out)), general.Values(op)...)
	if err := e.Submit(bg, gpuexec.Launch{Kernel: k, Grid: grid, Args: args}); err != nil {
		t.Fatal(err)
	}
	return generaltest.Download[float32](t, e, out)
}
