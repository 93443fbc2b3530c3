package onednn

import (
	"math"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

// E3: statistics that a request leaves to the library lie as it chose, which Tensors tells: it
// chooses by the source, turned or in blocks, and would write them elsewhere, or outside of rows.
func TestStatisticsOfATurnedSource(t *testing.T) {
	r := open1(t, limit.Limit{})
	for _, src := range []tensor{
		Dense("f32", 2, 3, 4), {Type: "f32", Dims: []int64{2, 3, 4}, Strides: []int64{4, 8, 1}},
		{Type: "f32", Dims: []int64{2, 3, 4}, Strides: []int64{32, 32, 8}, Blocks: []primitive.Block{{Dim: 1, Size: 8}}},
	} {
		for direction, params := range map[string][]param{"forward_training": nil, "inference": {{Name: "global_stats"}}} {
			s := spec("layer_normalization", direction, "", append(params, float("epsilon", 1e-5)), src, src, tensor{})
			for d, err := range r.All(bg, &s) {
				if err != nil {
					t.Fatal(err)
				}
				r.statistics(d, direction == "inference")
				d.Release()
			}
		}
	}
	s := spec("layer_normalization", "inference", "", nil, Dense("f32", 2, 4), Dense("f32", 2, 4), tensor{})
	if got := r.kernel(s).Descriptor().Tensors()[2]; !absent(&got) {
		t.Errorf("statistics that nobody takes are %v", got)
	}
}

// statistics runs a layer normalisation over rows that each have one number.
func (r *rig) statistics(d *primitive.Descriptor, given bool) {
	r.Helper()
	x, stat := d.Tensors()[0], d.Tensors()[2]
	src, dst, mean, variance := r.memory(x), r.memory(x), r.memory(stat), r.memory(stat)
	place := func(t tensor, at ...int64) (n int64) {
		for i, j := range at {
			if len(t.Blocks) > 0 && t.Blocks[0].Dim == i {
				n += j % t.Blocks[0].Size
				j /= t.Blocks[0].Size
			}
			n += j * t.Strides[i]
		}
		return n
	}
	if stat.Layout != "" { // there is room for them in the library's own layout
		r.executed(d, src, dst, mean, variance)
		return
	}
	for i := range int64(2) {
		for j := range int64(3) {
			for k := range int64(4) {
				Of[float32](src)[place(x, i, j, k)] = float32(10*i + j)
			}
			if given {
				Of[float32](mean)[place(stat, i, j)], Of[float32](variance)[place(stat, i, j)] = float32(10*i+j)-1, 1
			}
		}
	}
	r.executed(d, src, dst, mean, variance)
	for i := range int64(2) {
		for j := range int64(3) {
			if got := Of[float32](mean)[place(stat, i, j)]; !given && got != float32(10*i+j) {
				r.Fatalf("%s of %v: the mean of row %d, %d is %v in %v", d.Name(), x, i, j, got, stat)
			}
			if got := Of[float32](dst)[place(x, i, j, 3)]; given && math.Abs(float64(got)-1) > 1e-4 {
				r.Fatalf("%s of %v: row %d, %d became %v, want 1", d.Name(), x, i, j, got)
			}
		}
	}
}

// executed makes a descriptor's primitive and runs it.
func (r *rig) executed(d *primitive.Descriptor, src, dst, mean, variance *Memory) {
	r.Helper()
	lease, _, err := r.Make(bg, d, "")
	if err != nil {
		r.Fatal(err)
	}
	defer lease.End()
	r.run(lease.Primitive(), Arg{Src, src}, Arg{Dst, dst}, Arg{Mean, mean}, Arg{Variance, variance})
}
