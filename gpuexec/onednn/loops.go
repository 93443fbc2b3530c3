package onednn

import (
	"encoding/binary"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// The loops below are the forms for any shape, of package ops' operations. They are a
// device's code: two launches at once that write one buffer are their caller's affair, as on
// any device, and no race of this program.

//go:norace
func gather(ids, table, out []byte, d [5]int64) error {
	row := 4 * d[1]
	for i := range d[0] {
		id := int64(int32(binary.LittleEndian.Uint32(ids[4*i:])))
		if id < 0 || id >= d[2] {
			return fault.Invalidf("onednn: launch", "gather: id %d is %d, want 0 to %d", i, id, d[2]-1)
		}
		copy(out[i*row:(i+1)*row], table[id*row:])
	}
	return nil
}

//go:norace
func add(a, b, out []float32, d [5]int64) {
	n := d[2] * d[1]
	b = b[:n]
	for at := int64(0); at < d[0]*d[1]; at += n {
		x, to := a[at:at+n], out[at:at+n]
		for i, v := range b {
			to[i] = x[i] + v
		}
	}
}

// reorder gives [a, c, b, d] of [a, b, c, d].
//
//go:norace
func reorder(x, out []byte, d [5]int64) {
	row := 4 * d[3]
	at := int64(0)
	for a := range d[0] {
		for c := range d[2] {
			for b := range d[1] {
				from := ((a*d[1]+b)*d[2] + c) * row
				at += int64(copy(out[at:at+row], x[from:]))
			}
		}
	}
}

//go:norace
func slice(x, out []byte, d [5]int64) {
	row := 4 * d[2]
	for i := range d[0] {
		copy(out[i*row:(i+1)*row], x[i*d[1]*row:])
	}
}

// mask copies valid scores, with -Inf behind them. Items without any are 0.
//
//go:norace
func mask(x []float32, lengths []byte, out []float32, d [5]int64) {
	keys, each := d[3], d[1]*d[2]*d[3]
	for row := int64(0); row < d[0]*each; row += keys {
		n := valid(lengths, row/each, keys)
		if n == 0 {
			clear(out[row : row+keys])
			continue
		}
		copy(out[row:row+n], x[row:row+n])
		for i := row + n; i < row+keys; i++ {
			out[i] = float32(math.Inf(-1))
		}
	}
}

// unmask has padding be 0: it is NaN behind scores that are not finite.
//
//go:norace
func unmask(lengths []byte, out []float32, d [5]int64) {
	keys, each := d[3], d[1]*d[2]*d[3]
	for row := int64(0); row < d[0]*each; row += keys {
		clear(out[row+valid(lengths, row/each, keys) : row+keys])
	}
}

//go:norace
func softmax(x []float32, lengths []byte, out []float32, d [5]int64) {
	keys, each := d[3], d[1]*d[2]*d[3]
	for at := int64(0); at < d[0]*each; at += keys {
		n := valid(lengths, at/each, keys)
		from, to := x[at:at+n], out[at:at+keys]
		most := float32(math.Inf(-1))
		for _, v := range from {
			most = max(most, v)
		}
		sum := float32(0)
		for i, v := range from {
			to[i] = float32(math.Exp(float64(v - most)))
			sum += to[i]
		}
		for i := range to[:n] {
			to[i] /= sum
		}
		clear(to[n:])
	}
}

//go:norace
func layerNorm(x, gamma, beta, out []float32, op ops.Op) {
	n := op.Dims[1]
	for at := int64(0); at < op.Dims[0]*n; at += n {
		row, to := x[at:at+n], out[at:at+n]
		mean, variance := 0.0, 0.0
		for _, v := range row {
			mean += float64(v)
		}
		mean /= float64(n)
		for _, v := range row {
			variance += (float64(v) - mean) * (float64(v) - mean)
		}
		scale := 1 / math.Sqrt(variance/float64(n)+float64(op.Epsilon))
		for i, v := range row {
			to[i] = float32((float64(v)-mean)*scale)*gamma[i] + beta[i]
		}
	}
}

//go:norace
func eltwise(x, out []float32, op ops.Op) {
	n := op.Elements()
	x, out = x[:n], out[:n]
	for i, v := range x {
		if v := float64(v); op.Kind == ops.Tanh {
			out[i] = float32(math.Tanh(v))
		} else {
			out[i] = float32(v / 2 * (1 + math.Erf(v/math.Sqrt2)))
		}
	}
}

//go:norace
func zero(out []float32) { clear(out) }
