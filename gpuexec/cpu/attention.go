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

// attentionBlocks are a launch of attention, one block a sequence and head: the first head of
// every sequence, then the next. So the blocks of a long sequence are not neighbours.
type attentionBlocks struct {
	set     *gemm.Set
	op      ops.Op
	tensors [4][]float32 // q, k, v, out
	starts  []int        // checked
}

// bind takes a launch's arguments, which say nothing that can be trusted.
func (a *attentionBlocks) bind(set *gemm.Set, args []gpuexec.DeviceArg) error {
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

// operations are those of both products.
func (a *attentionBlocks) operations() (all int64) {
	width := a.op.Dims[1] * a.op.Dims[2]
	for i, at := range a.starts[1:] {
		tokens := int64(at - a.starts[i])
		all += 4 * tokens * tokens * width
	}
	return all
}

func (a *attentionBlocks) run(ctx context.Context, first, end int, with *scratch) error {
	sequences := len(a.starts) - 1
	for block := first; block < end; block++ {
		if err := a.head(ctx, a.starts[block%sequences], a.starts[block%sequences+1], block/sequences, with); err != nil {
			return err
		}
	}
	return nil
}

// head computes one head of the sequence from begin to end.
func (a *attentionBlocks) head(ctx context.Context, begin, end, head int, with *scratch) error {
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
	with.keys = sized(with.keys, a.set.PackedLen(width, tokens))
	with.values = sized(with.values, a.set.PackedLen(tokens, width))
	if err := a.set.PackKeys(with.keys, k, width, tokens, all, a.op.Scale); err != nil {
		return err
	}
	if err := a.set.PackStrided(with.values, v, tokens, width, all, 1); err != nil {
		return err
	}
	stride := padded + 16 // rows then do not fall into the same places of the cache
	rows := min(tokens, max(scoresFloats/stride/scoresRows, 1)*scoresRows)
	with.scores = sized(with.scores, rows*stride)
	start := with.start(tokens, padded)
	for at := 0; at < tokens; at += rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		rows := min(rows, tokens-at)
		x := gemm.Args{M: rows, K: width, N: padded, A: q[all*at:], LDA: all, B: with.keys, C: with.scores, LDC: stride, Bias: start}
		if err := a.product(&x); err != nil {
			return err
		}
		if err := a.set.Softmax(with.scores, rows, stride, tokens); err != nil {
			return err
		}
		x = gemm.Args{M: rows, K: tokens, N: width, A: with.scores, LDA: stride, B: with.values, C: out[all*at:], LDC: all}
		if err := a.product(&x); err != nil {
			return err
		}
	}
	return nil
}

func (a *attentionBlocks) product(x *gemm.Args) error {
	return a.set.Run(x, 0, a.set.Blocks(x.M, x.N, x.K))
}

// widest is as many columns as a panel of any set has at most.
const widest = 64

// start is what a row of scores starts with: zeros, and -Inf behind the tokens up to where
// it is padded, by less than a panel.
func (s *scratch) start(tokens, padded int) []float32 {
	zeros := len(s.edge) - widest
	if zeros < tokens {
		zeros = 2 * tokens
		s.edge = make([]float32, zeros+widest)
		for i := range widest {
			s.edge[zeros+i] = float32(math.Inf(-1))
		}
	}
	return s.edge[zeros-tokens:][:padded]
}

// sized is list with n numbers, which may be any.
func sized(list []float32, n int) []float32 {
	if cap(list) < n {
		return make([]float32, n)
	}
	return list[:n]
}
