package cpu

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
)

// queue runs launches on its worker's goroutine, at once. Owned by one goroutine.
type queue struct {
	d         *device
	offsets   []uint32  // of the launch in hand
	packed    []float32 // right-hand side of one product of a batch
	attending attention
}

// Launch runs all blocks, in calls that each end soon, and stops between two of
// them when ctx ends. ErrInvalid if the program has fewer.
func (q *queue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, size, _ gpuexec.Size) error {
	grid := size[0] // Limits allow no more
	switch p := p.(type) {
	case *program:
		spec := p.kernel.Spec()
		if most := int(spec.Blocks()); grid > most {
			return tooManyBlocks(spec, grid, most)
		}
		return q.run(ctx, p, args, uint32(grid))
	case *product:
		if p.op.Kind == ops.Attention {
			return q.attention(ctx, args, grid)
		}
		if most := q.d.backend.blocks(p.op); grid > most {
			return tooManyBlocks(p.op, grid, most)
		}
		switch p.op.Kind {
		case ops.MatMul:
			return q.matmul(p.op, args, grid)
		case ops.GELU:
			n := grid * int(p.op.Dims[1])
			return q.d.backend.set.GELU(floats(view(args[1]))[:n], floats(view(args[0]))[:n])
		}
		return q.batchMatMul(ctx, p.op, args, grid)
	}
	return fault.Invalidf("cpu: launch", "a program of type %T", p)
}

func tooManyBlocks(of fmt.Stringer, grid, most int) error {
	return fault.Invalidf("cpu: launch", "%s: grid of %d blocks, want at most %d", of, grid, most)
}

func (q *queue) run(ctx context.Context, p *program, args []gpuexec.DeviceArg, grid uint32) error {
	i, err := p.kernel.NewInstance() // the launch's own: an instance has one stack (SPEC E5)
	if err != nil {
		return err
	}
	defer i.Close()
	q.offsets = q.offsets[:0]
	for _, a := range args {
		q.offsets = append(q.offsets, uint32(a.Memory.(*memory).offset+a.Offset))
	}
	for b := uint32(0); b < grid; b += p.blocks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := i.Call(q.offsets, b, min(b+p.blocks, grid)); err != nil {
			return err
		}
	}
	return nil
}

func view(a gpuexec.DeviceArg) []byte {
	return a.Memory.(*memory).Mapped()[a.Offset : a.Offset+a.Bytes]
}

func (q *queue) matmul(op ops.Op, args []gpuexec.DeviceArg, grid int) error {
	m, k, n := int(op.Dims[0]), int(op.Dims[1]), int(op.Dims[2])
	set := q.d.backend.setOf(op)
	x := gemm.Args{M: m, K: k, N: n, A: floats(view(args[0])), LDA: k,
		B: floats(view(args[1]))[:set.PackedLen(k, n)], C: floats(view(args[len(args)-1])), LDC: n}
	if op.Bias {
		x.Bias = floats(view(args[2]))[:n]
	}
	return set.Run(&x, 0, grid)
}

// batchMatMul computes the products of the blocks, one a batch item and head.
// Only what is valid takes part: padding is neither read nor, where the length
// bounds the columns, written; rows of padding are set to 0 where it bounds k.
func (q *queue) batchMatMul(ctx context.Context, op ops.Op, args []gpuexec.DeviceArg, grid int) error {
	heads, m, k, n := int(op.Dims[1]), int(op.Dims[2]), int(op.Dims[3]), int(op.Dims[4])
	a, b, c, lengths := floats(view(args[0])), floats(view(args[1])), floats(view(args[3])), view(args[2])
	for block := range grid {
		if err := ctx.Err(); err != nil {
			return err
		}
		item := block / heads
		length := int(int32(binary.LittleEndian.Uint32(lengths[4*item:])))
		p := matrices{m: m, k: k, n: n, rows: m, depth: k, columns: n, scale: op.Scale, transposed: op.TransposeB,
			a: a[block*m*k : (block+1)*m*k], b: b[block*k*n : (block+1)*k*n], c: c[block*m*n : (block+1)*m*n]}
		p.bound(op.MaskK, length)
		if err := q.multiply(p); err != nil {
			return err
		}
	}
	return nil
}

// matrices are one product of a batch: the dimensions it is stored with, and
// those that take part.
type matrices struct {
	m, k, n              int
	rows, depth, columns int
	scale                float32
	transposed           bool
	a, b, c              []float32
}

// bound leaves padding out. A length outside of 0 to the stored dimension counts
// as all of it.
func (p *matrices) bound(overK bool, length int) {
	stored := &p.columns
	if overK {
		stored = &p.depth
	}
	if length < 0 || length >= *stored {
		return
	}
	if p.m == *stored { // self-attention: its rows are padded alike
		p.rows = length
	}
	*stored = length
}

func (q *queue) multiply(p matrices) error {
	set := q.d.backend.set
	q.packed = sized(q.packed, set.PackedLen(p.depth, p.columns))
	packed := q.packed
	if p.scale == 0 {
		p.scale = 1
	}
	if err := p.pack(set, packed); err != nil {
		return err
	}
	x := gemm.Args{M: p.rows, K: p.depth, N: p.columns, A: p.a, LDA: p.k, B: packed, C: p.c, LDC: p.n}
	if err := set.Run(&x, 0, set.Blocks(p.rows, p.columns, p.depth)); err != nil {
		return err
	}
	if p.columns == p.n {
		clear(p.c[p.rows*p.n:])
	}
	return nil
}

// pack packs the right-hand side, times the scale.
func (p *matrices) pack(set *gemm.Set, packed []float32) error {
	if p.transposed {
		return set.PackKeys(packed, p.b, p.depth, p.columns, p.k, p.scale)
	}
	err := set.PackStrided(packed, p.b, p.depth, p.columns, p.n, 1)
	if p.scale != 1 {
		for i := range packed {
			packed[i] *= p.scale
		}
	}
	return err
}

func (q *queue) Write(m gpuexec.Memory, offset int64, from []byte) error {
	copy(m.(*memory).Mapped()[offset:], from)
	return nil
}

func (q *queue) Read(m gpuexec.Memory, offset int64, into []byte) error {
	copy(into, m.(*memory).Mapped()[offset:])
	return nil
}

// Finish implements gpuexec.Queue: a launch has run when it returns.
func (q *queue) Finish(context.Context) error { return nil }

func (q *queue) Close() error { return nil }
