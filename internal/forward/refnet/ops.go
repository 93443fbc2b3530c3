package refnet

import (
	"fmt"
	"math"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

func add(out, x, y []float64) {
	for i := range out {
		out[i] = x[i] + y[i]
	}
}

// addRows adds the first values of a table to every request of x, each of so
// many values.
func addRows(out, x []float64, table []float32, each int) {
	for i := range out {
		out[i] = x[i] + float64(table[i%each])
	}
}

func layerNorm(out, x []float64, gamma, beta []float32, eps float64) {
	width := len(gamma)
	for at := 0; at < len(x); at += width {
		row := x[at : at+width]
		mean := 0.0
		for _, v := range row {
			mean += v
		}
		mean /= float64(width)
		variance := 0.0
		for _, v := range row {
			variance += (v - mean) * (v - mean)
		}
		scale := 1 / math.Sqrt(variance/float64(width)+eps)
		for j, v := range row {
			out[at+j] = (v-mean)*scale*float64(gamma[j]) + float64(beta[j])
		}
	}
}

// matMul multiplies x [M,K] by kernel [K,n] and adds the bias, if there is one.
// Four rows of x go through the kernel together, so that each of its values is
// loaded and widened once for four products. The race detector would look at each of
// them: nobody writes a kernel, and out and x are one pass's.
//
//go:norace
func matMul(out, x []float64, kernel, bias []float32, n int) {
	k := len(kernel) / n
	m := len(x) / k
	for at := 0; at < m*n; at += n {
		for j, b := range bias {
			out[at+j] = float64(b)
		}
	}
	i := 0
	for ; i+4 <= m; i += 4 {
		o0, o1, o2, o3 := out[i*n:(i+1)*n], out[(i+1)*n:(i+2)*n], out[(i+2)*n:(i+3)*n], out[(i+3)*n:(i+4)*n]
		for l := range k {
			x0, x1, x2, x3 := x[i*k+l], x[(i+1)*k+l], x[(i+2)*k+l], x[(i+3)*k+l]
			row := kernel[l*n : (l+1)*n]
			o0, o1, o2, o3 = o0[:len(row)], o1[:len(row)], o2[:len(row)], o3[:len(row)] // one bounds check, not four an element
			for j, w := range row {
				v := float64(w)
				o0[j] += x0 * v
				o1[j] += x1 * v
				o2[j] += x2 * v
				o3[j] += x3 * v
			}
		}
	}
	for ; i < m; i++ {
		o := out[i*n : (i+1)*n]
		for l := range k {
			v := x[i*k+l]
			for j, w := range kernel[l*n : (l+1)*n] {
				o[j] += v * float64(w)
			}
		}
	}
}

// reorder writes x with its dims permuted: dim d of out is dim perm[d] of x.
func reorder(out, x []float64, src, perm []int) {
	stride := make([]int, len(src))
	for d, s := len(src)-1, 1; d >= 0; d-- {
		stride[d] = s
		s *= src[d]
	}
	place := make([]int, len(perm)) // of the element written, by dim of out
	for i := range out {
		from := 0
		for d, at := range place {
			from += at * stride[perm[d]]
		}
		out[i] = x[from]
		for d := len(place) - 1; d >= 0; d-- {
			if place[d]++; place[d] < src[perm[d]] {
				break
			}
			place[d] = 0
		}
	}
}

// batchMatMul multiplies the last two dims for every request and head. Masking
// is left to the softmax: what it does not read may be anything, and what it
// gives is exactly 0 for masked columns.
func batchMatMul(out, x, y []float64, op oplist.BoundOp) {
	m, n, depth := op.Dst[2], op.Dst[3], op.Src[0][3]
	scale := float64(op.Attr.Scale)
	row, column := n, 1 // strides of y
	if op.TransposeB {
		row, column = 1, depth
	}
	for h := range op.Dst[0] * op.Dst[1] {
		xs, ys, os := x[h*m*depth:], y[h*n*depth:], out[h*m*n:]
		for i := range m {
			for j := range n {
				sum := 0.0
				for l := range depth {
					sum += xs[i*depth+l] * ys[l*row+j*column]
				}
				os[i*n+j] = scale * sum
			}
		}
	}
}

// softmax is over the columns that are not masked; the others become 0.
func (p *pass) softmax(out, x []float64, dims []int) {
	width := dims[len(dims)-1]
	each := len(x) / dims[0]
	for at := 0; at < len(x); at += width {
		row, columns := x[at:at+width], p.lengths[at/each]
		most := math.Inf(-1)
		for _, v := range row[:columns] {
			most = max(most, v)
		}
		sum := 0.0
		for j, v := range row[:columns] {
			out[at+j] = math.Exp(v - most)
			sum += out[at+j]
		}
		for j := range columns {
			out[at+j] /= sum
		}
	}
}

func eltwise(out, x []float64, alg string) error {
	switch alg {
	case "gelu":
		for i, v := range x {
			out[i] = v / 2 * (1 + math.Erf(v/math.Sqrt2))
		}
	case "tanh":
		for i, v := range x {
			out[i] = math.Tanh(v)
		}
	default:
		return fmt.Errorf("refnet: eltwise %q: %w", alg, fault.ErrUnsupported)
	}
	return nil
}
