package cpu

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/general"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/gemm"
)

// attentions is what the one program of every attention stands for: its launches say
// their dimensions and scale.
var attentions = ops.New(ops.Attention, 1, 1, 1, 1)

func attentionSource(op ops.Op) (gpuexec.Source, error) {
	if err := general.Check(op, 1); err != nil {
		return gpuexec.Source{}, err
	}
	return gpuexec.Source{Key: op.Kind.String(), Spec: attentions, Params: general.Params(op, 1)}, nil
}

// scoresFloats is how many scores are kept at once: an eighth of a usual second-level
// cache. Fewer than the rows of a tile would leave the units of the processor waiting.
const (
	scoresFloats = 32 << 10
	scoresRows   = 14
)

// attention is a launch in hand, with memory that stays with its queue.
type attention struct {
	set     *gemm.Set
	op      ops.Op
	tensors [4][]float32 // q, k, v, out
	starts  []int        // checked
	keys    []float32
	values  []float32
	scores  []float32
	// edge is zeros and then a panel of -Inf: the start of a row of scores, so that those
	// behind the sequence become -Inf.
	edge []float32
}

// bind takes a launch's arguments, which say nothing that can be trusted.
func (a *attention) bind(set *gemm.Set, args []gpuexec.DeviceArg) error {
	dim := func(i int) int64 { return int64(uint32(args[5+i].Value)) }
	a.set, a.op = set, ops.New(ops.Attention, dim(0), dim(1), dim(2), dim(3))
	a.op.Scale = math.Float32frombits(uint32(args[9].Value))
	if err := a.op.Validate(); err != nil {
		return err
	}
	tokens, list, each := int(a.op.Dims[0]), 4*(a.op.Dims[3]+1), 4*a.op.Elements()
	for i, want := range [...]int64{each, each, each, list, each} {
		if args[i].Bytes < want {
			return fault.Invalidf("cpu: launch", "%s: argument %d has %d bytes, want at least %d", a.op, i, args[i].Bytes, want)
		}
	}
	for i, arg := range [...]int{0, 1, 2, 4} {
		a.tensors[i] = floats(view(args[arg]))
	}
	a.starts = a.starts[:0]
	for b := view(args[3])[:list]; len(b) > 0; b = b[4:] {
		a.starts = append(a.starts, int(int32(binary.LittleEndian.Uint32(b))))
	}
	before := 0
	for i, at := range a.starts {
		if at < before || at > tokens || i == 0 && at != 0 {
			return fault.Invalidf("cpu: launch", "%s: starts[%d] is %d after %d, want an ascending list from 0 to %d", a.op, i, at, before, tokens)
		}
		before = at
	}
	if before != tokens {
		return fault.Invalidf("cpu: launch", "%s: starts ends with %d, want %d", a.op, before, tokens)
	}
	return nil
}

// attention runs blocks, one a sequence and head.
func (q *queue) attention(ctx context.Context, args []gpuexec.DeviceArg, grid int) error {
	a := &q.attending
	if err := a.bind(q.d.backend.set, args); err != nil {
		return err
	}
	if most := q.d.backend.blocks(a.op); grid > most {
		return tooManyBlocks(a.op, grid, most)
	}
	heads := int(a.op.Dims[1])
	for block := range grid {
		if err := a.head(ctx, a.starts[block/heads], a.starts[block/heads+1], block%heads); err != nil {
			return err
		}
	}
	return nil
}

// head computes one head of the sequence from begin to end.
func (a *attention) head(ctx context.Context, begin, end, head int) error {
	tokens, width := end-begin, int(a.op.Dims[2])
	if tokens == 0 {
		return nil
	}
	all := int(a.op.Dims[1]) * width
	var of [4][]float32
	for i, tensor := range a.tensors {
		of[i] = tensor[all*begin+head*width : all*(end-1)+(head+1)*width]
	}
	q, k, v, out := of[0], of[1], of[2], of[3]
	padded := a.set.Padded(tokens)
	a.keys = sized(a.keys, a.set.PackedLen(width, tokens))
	a.values = sized(a.values, a.set.PackedLen(tokens, width))
	if err := a.set.PackKeys(a.keys, k, width, tokens, all, a.op.Scale); err != nil {
		return err
	}
	if err := a.set.PackStrided(a.values, v, tokens, width, all, 1); err != nil {
		return err
	}
	stride := padded + 16 // rows then do not fall into the same places of the cache
	rows := min(tokens, max(scoresFloats/stride/scoresRows, 1)*scoresRows)
	a.scores = sized(a.scores, rows*stride)
	start := a.start(tokens)
	for at := 0; at < tokens; at += rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := min(rows, tokens-at)
		x := gemm.Args{M: rows, K: width, N: padded, A: q[all*at:], LDA: all, B: a.keys, C: a.scores, LDC: stride, Bias: start}
		if err := a.product(&x); err != nil {
			return err
		}
		if err := a.set.Softmax(a.scores, rows, stride, tokens); err != nil {
			return err
		}
		x = gemm.Args{M: rows, K: tokens, N: width, A: a.scores, LDA: stride, B: a.values, C: out[all*at:], LDC: all}
		if err := a.product(&x); err != nil {
			return err
		}
	}
	return nil
}

func (a *attention) product(x *gemm.Args) error {
	return a.set.Run(x, 0, a.set.Blocks(x.M, x.N, x.K))
}

// start is what a row of scores starts with: zeros, and -Inf behind the tokens.
func (a *attention) start(tokens int) []float32 {
	panel := a.set.Padded(1)
	zeros := len(a.edge) - panel
	if zeros < tokens {
		zeros = 2 * tokens
		a.edge = make([]float32, zeros+panel)
		for i := range panel {
			a.edge[zeros+i] = float32(math.Inf(-1))
		}
	}
	return a.edge[zeros-tokens:][:a.set.Padded(tokens)]
}

// sized is list with n numbers, which may be any.
func sized(list []float32, n int) []float32 {
	if cap(list) < n {
		return make([]float32, n)
	}
	return list[:n]
}
