package devicetest

import (
	"math"

	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// tensors are the operands of an operation, in the order of package ops, with
// the weight of a matmul as it is before it is prepared.
type tensors struct {
	floats  [][]float32 // without the output
	ids     []int32     // of gather
	lengths []int32     // of batch_matmul and softmax; the starts of attention
}

// reference computes an operation in float64 as package ops defines it, and says
// which elements are defined: padding may hold anything.
func reference(op ops.Op, in tensors) (out []float64, defined []bool) {
	out = make([]float64, op.Elements())
	defined = make([]bool, len(out))
	for i := range defined {
		defined[i] = true
	}
	d := op.Dims
	x := func(n, i int64) float64 { return float64(in.floats[n][i]) }
	switch op.Kind {
	case ops.Gather:
		for i := range out {
			row, column := int64(i)/d[1], int64(i)%d[1]
			out[i] = x(0, int64(in.ids[row])*d[1]+column)
		}
	case ops.Add:
		for i := range out {
			out[i] = x(0, int64(i)) + x(1, int64(i)%(d[2]*d[1]))
		}
	case ops.LayerNorm:
		layerNorm(out, op, in)
	case ops.MatMul:
		for i := range out {
			row, column := int64(i)/d[2], int64(i)%d[2]
			for k := range d[1] {
				out[i] += x(0, row*d[1]+k) * x(1, k*d[2]+column)
			}
			if op.Bias {
				out[i] += x(2, column)
			}
		}
	case ops.BatchMatMul:
		batchMatMul(out, defined, op, in)
	case ops.Softmax:
		softmax(out, defined, op, in)
	case ops.Attention:
		attention(out, op, in)
	case ops.Reorder:
		for i := range out { // out is [a,c,b,d]
			at := int64(i)
			e, b, c, a := at%d[3], at/d[3]%d[1], at/d[3]/d[1]%d[2], at/d[3]/d[1]/d[2]
			out[i] = x(0, ((a*d[1]+b)*d[2]+c)*d[3]+e)
		}
	case ops.GELU:
		for i := range out {
			v := x(0, int64(i))
			out[i] = v / 2 * (1 + math.Erf(v/math.Sqrt2))
		}
	case ops.Tanh:
		for i := range out {
			out[i] = math.Tanh(x(0, int64(i)))
		}
	case ops.Slice:
		for i := range out {
			out[i] = x(0, int64(i)/d[2]*d[1]*d[2]+int64(i)%d[2])
		}
	}
	return out, defined
}

func layerNorm(out []float64, op ops.Op, in tensors) {
	width := int(op.Dims[1])
	for row := 0; row < len(out); row += width {
		var mean, variance float64
		for i := range width {
			mean += float64(in.floats[0][row+i]) / float64(width)
		}
		for i := range width {
			dx := float64(in.floats[0][row+i]) - mean
			variance += dx * dx / float64(width)
		}
		scale := 1 / math.Sqrt(variance+float64(op.Epsilon))
		for i := range width {
			out[row+i] = (float64(in.floats[0][row+i])-mean)*scale*float64(in.floats[1][i]) + float64(in.floats[2][i])
		}
	}
}

// within is how many positions a length makes valid.
func within(length int32, stored int64) int64 {
	if length < 0 {
		return stored
	}
	return min(int64(length), stored)
}

// batchMatMul: the length bounds k where the Op says so, else the columns; in a
// square of tokens it bounds the rows, too.
func batchMatMul(out []float64, defined []bool, op ops.Op, in tensors) {
	heads, m, k, n := op.Dims[1], op.Dims[2], op.Dims[3], op.Dims[4]
	scale := float64(op.Scale)
	if scale == 0 {
		scale = 1
	}
	for i := range out {
		at := int64(i)
		column, row, block := at%n, at/n%m, at/n/m
		depth := k
		if op.MaskK {
			depth = within(in.lengths[block/heads], k)
			defined[i] = m != k || row < depth
		} else {
			length := within(in.lengths[block/heads], n)
			defined[i] = column < length && (m != n || row < length)
		}
		for j := range depth {
			b := (block*k+j)*n + column
			if op.TransposeB {
				b = (block*n+column)*k + j
			}
			out[i] += float64(in.floats[0][(block*m+row)*k+j]) * float64(in.floats[1][b])
		}
		out[i] *= scale
	}
}

// softmax: padded keys are 0.
func softmax(out []float64, defined []bool, op ops.Op, in tensors) {
	heads, queries, keys := op.Dims[1], op.Dims[2], int(op.Dims[3])
	for row := range len(out) / keys {
		length := int(within(in.lengths[int64(row)/queries/heads], int64(keys)))
		valid, result := in.floats[0][row*keys:][:length], out[row*keys:]
		most, sum := math.Inf(-1), 0.0
		for _, v := range valid {
			most = max(most, float64(v))
		}
		for i, v := range valid {
			result[i] = math.Exp(float64(v) - most)
			sum += result[i]
		}
		for i := range valid {
			result[i] /= sum
		}
		padding := queries == int64(keys) && int64(row)%queries >= int64(length)
		for i := range keys {
			defined[row*keys+i] = !padding
		}
	}
}

// attention: each sequence by itself.
func attention(out []float64, op ops.Op, in tensors) {
	heads, width := int(op.Dims[1]), int(op.Dims[2])
	x := func(part, row, head, i int) float64 { return float64(in.floats[part][(row*heads+head)*width+i]) }
	for s := range len(in.lengths) - 1 {
		begin, end := int(in.lengths[s]), int(in.lengths[s+1])
		for at := begin * heads; at < end*heads; at++ {
			row, head := at/heads, at%heads
			scores, most, sum := make([]float64, end-begin), math.Inf(-1), 0.0
			for key := range scores {
				for i := range width {
					scores[key] += x(0, row, head, i) * x(1, begin+key, head, i) * float64(op.Scale)
				}
				most = max(most, scores[key])
			}
			for key, score := range scores {
				scores[key] = math.Exp(score - most)
				sum += scores[key]
			}
			for key, share := range scores {
				for i := range width {
					out[at*width+i] += share / sum * x(2, begin+key, head, i)
				}
			}
		}
	}
}
