package cpu

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
)

// queue runs launches on its worker's goroutine, at once, and on cores that are spare.
// Owned by one goroutine.
type queue struct {
	d    *device
	team team

	// The launch in hand is one of these.
	kernel    kernelBlocks
	matmul    matmulBlocks
	gelu      geluBlocks
	batch     batchBlocks
	attention attentionBlocks
}

func newQueue(d *device) *queue {
	q := &queue{d: d}
	q.team.join(&d.crew)
	return q
}

// Launch runs all blocks, in calls that each end soon, and stops between two of
// them when ctx ends. ErrInvalid if the program has fewer.
func (q *queue) Launch(ctx context.Context, p gpuexec.Program, args []gpuexec.DeviceArg, size, _ gpuexec.Size) error {
	q.team.begin()
	grid := size[0] // Limits allow no more
	all, takes, err := q.bind(p, args, grid)
	if err != nil {
		return err
	}
	return q.team.run(ctx, all, grid, takes)
}

// bind gives the blocks of a launch, and how long they take on one core, about.
func (q *queue) bind(p gpuexec.Program, args []gpuexec.DeviceArg, grid int) (blocks, time.Duration, error) {
	switch p := p.(type) {
	case *program:
		kernel, err := p.of(args)
		if err != nil {
			return nil, 0, err
		}
		spec := kernel.Spec()
		if most := int(spec.Blocks()); grid > most {
			return nil, 0, tooManyBlocks(spec, grid, most)
		}
		q.kernel.bind(kernel, args)
		return &q.kernel, time.Duration(grid) * spec.BlockCost(), nil
	case *product:
		op, err := p.op, error(nil)
		switch {
		case op.Kind == ops.Attention:
			err = q.attention.bind(q.d.backend.set, args)
			op = q.attention.op
		case p.anyRows:
			op, err = withRows(op, args)
		}
		if err != nil {
			return nil, 0, err
		}
		if most := q.d.backend.blocks(op); grid > most {
			return nil, 0, tooManyBlocks(op, grid, most)
		}
		all, operations := q.product(op, args)
		return all, q.d.backend.set.Takes(operations), nil
	}
	return nil, 0, fault.Invalidf("cpu: launch", "a program of type %T", p)
}

func (q *queue) product(op ops.Op, args []gpuexec.DeviceArg) (all blocks, operations int64) {
	d := op.Dims
	switch op.Kind {
	case ops.Attention: // bound
		return &q.attention, q.attention.operations()
	case ops.MatMul:
		q.matmul.bind(q.d.backend.setOf(op), op, args)
		return &q.matmul, 2 * d[0] * d[1] * d[2]
	case ops.GELU:
		q.gelu.bind(q.d.backend.set, op, args)
		return &q.gelu, 32 * op.Elements()
	}
	q.batch.bind(q.d.backend.set, op, args)
	return &q.batch, 2 * d[0] * d[1] * d[2] * d[3] * d[4]
}

func tooManyBlocks(of fmt.Stringer, grid, most int) error {
	return fault.Invalidf("cpu: launch", "%s: grid of %d blocks, want at most %d", of, grid, most)
}

func view(a gpuexec.DeviceArg) []byte {
	return a.Memory.(*memory).Mapped()[a.Offset : a.Offset+a.Bytes]
}

// kernelBlocks are a launch of a WebAssembly kernel.
type kernelBlocks struct {
	program *kernels.Program
	offsets []uint32 // of the buffers
}

func (l *kernelBlocks) bind(p *kernels.Program, args []gpuexec.DeviceArg) {
	l.program, l.offsets = p, l.offsets[:0]
	for _, a := range args {
		if a.Memory != nil {
			l.offsets = append(l.offsets, uint32(a.Memory.(*memory).offset+a.Offset))
		}
	}
}

func (l *kernelBlocks) run(ctx context.Context, first, end int, _ *scratch) error {
	i, err := l.program.NewInstance() // the caller's own: an instance has one stack (SPEC E5)
	if err != nil {
		return err
	}
	defer i.Close()
	return inParts(ctx, first, end, int(l.program.Spec().BlocksPerCall()), func(first, end int) error {
		return i.Call(l.offsets, uint32(first), uint32(end))
	})
}

// matmulBlocks are a product with a prepared weight.
type matmulBlocks struct {
	set   *gemm.Set
	args  gemm.Args
	guest bool // the weight is
}

func (l *matmulBlocks) bind(set *gemm.Set, op ops.Op, args []gpuexec.DeviceArg) {
	m, k, n := int(op.Dims[0]), int(op.Dims[1]), int(op.Dims[2])
	right, isGuest := weight(args[1])
	out := args[2:]
	if op.Bias {
		out = args[3:]
	}
	l.set, l.guest = set, isGuest
	l.args = gemm.Args{M: m, K: k, N: n, A: floats(view(args[0])), LDA: k,
		B: floats(right)[:set.PackedLen(k, n)], C: floats(view(out[0])), LDC: n}
	if op.Bias {
		l.args.Bias = floats(view(args[2]))[:n]
	}
}

func (l *matmulBlocks) run(ctx context.Context, first, end int, _ *scratch) error {
	if l.guest {
		return reading(l.args.B, func() error { return l.multiply(ctx, first, end) })
	}
	return l.multiply(ctx, first, end)
}

func (l *matmulBlocks) multiply(ctx context.Context, first, end int) error {
	const most = 64 // blocks between two looks at ctx: some milliseconds
	return inParts(ctx, first, end, most, func(first, end int) error { return l.set.Run(&l.args, first, end) })
}

// inParts does most blocks at a time, until ctx ends.
func inParts(ctx context.Context, first, end, most int, part func(first, end int) error) error {
	for ; first < end; first += most {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := part(first, min(first+most, end)); err != nil {
			return err
		}
	}
	return nil
}

// geluBlocks are the rows of a gelu in assembly.
type geluBlocks struct {
	set     *gemm.Set
	from, y []float32
	width   int
}

func (l *geluBlocks) bind(set *gemm.Set, op ops.Op, args []gpuexec.DeviceArg) {
	*l = geluBlocks{set, floats(view(args[0])), floats(view(args[1])), int(op.Dims[1])}
}

func (l *geluBlocks) run(ctx context.Context, first, end int, _ *scratch) error {
	most := max(1, 4<<20/l.width) // rows between two looks at ctx: some milliseconds
	return inParts(ctx, first, end, most, func(first, end int) error {
		return l.set.GELU(l.y[first*l.width:end*l.width], l.from[first*l.width:end*l.width])
	})
}

// batchBlocks are products of a batch, one an item and head. Only what is valid takes part:
// padding is neither read nor, where the length bounds the columns, written; rows of padding
// are set to 0 where it bounds k.
type batchBlocks struct {
	set     *gemm.Set
	op      ops.Op
	a, b, c []float32
	lengths []byte
}

func (l *batchBlocks) bind(set *gemm.Set, op ops.Op, args []gpuexec.DeviceArg) {
	*l = batchBlocks{set, op, floats(view(args[0])), floats(view(args[1])), floats(view(args[3])), view(args[2])}
}

func (l *batchBlocks) run(ctx context.Context, first, end int, with *scratch) error {
	d := l.op.Dims
	heads, m, k, n := int(d[1]), int(d[2]), int(d[3]), int(d[4])
	for block := first; block < end; block++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		item := block / heads
		length := int(int32(binary.LittleEndian.Uint32(l.lengths[4*item:])))
		p := matrices{m: m, k: k, n: n, rows: m, depth: k, columns: n, scale: l.op.Scale, transposed: l.op.TransposeB,
			a: l.a[block*m*k : (block+1)*m*k], b: l.b[block*k*n : (block+1)*k*n], c: l.c[block*m*n : (block+1)*m*n]}
		p.bound(l.op.MaskK, length)
		if err := p.multiply(l.set, with); err != nil {
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

func (p *matrices) multiply(set *gemm.Set, with *scratch) error {
	with.packed = sized(with.packed, set.PackedLen(p.depth, p.columns))
	packed := with.packed
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
func (q *queue) Finish(context.Context) error {
	q.kernel.program = nil // its machine code goes with it
	q.team.finish()
	return nil
}

func (q *queue) Close() error {
	q.team.close()
	return nil
}
