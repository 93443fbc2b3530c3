package onednn

import "math"

// reference is the layer in float64, written down without the list: what a step computes, by
// the names of the list.
type reference struct {
	w, out map[string][]float64
	mask   []float64
}

// times is a times b, m x k by k x n. What is turned lies the other way round.
func times(a, b []float64, m, k, n int, turnA, turnB bool) []float64 {
	out := make([]float64, m*n)
	for i := range m {
		row := out[i*n:][:n]
		for x := range k {
			f := a[i*k+x]
			if turnA {
				f = a[x*m+i]
			}
			for j := range row {
				if turnB {
					row[j] += f * b[j*k+x]
				} else {
					row[j] += f * b[x*n+j]
				}
			}
		}
	}
	return out
}

func plus(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] + b[i%len(b)]
	}
	return out
}

// columns sums up the rows.
func columns(a []float64, n int) []float64 {
	out := make([]float64, n)
	for i, v := range a {
		out[i%n] += v
	}
	return out
}

func (f *reference) dense(name string, x []float64, in, out int) []float64 {
	return plus(times(x, f.w[prefix+name+"/kernel"], rows, in, out, false, false), f.w[prefix+name+"/bias"])
}

// denseBack gives the gradient of the input, and keeps those of kernel and bias.
func (f *reference) denseBack(name string, x, dy []float64, in, out int) []float64 {
	f.out[name+"/bwd_weights"], f.out[name+" bias"] = times(x, dy, in, rows, out, true, false), columns(dy, out)
	return times(dy, f.w[prefix+name+"/kernel"], rows, out, in, false, true)
}

// normal gives rows with mean 0 and variance 1, and by what each was multiplied.
func normal(x []float64) (out, by []float64) {
	out, by = make([]float64, len(x)), make([]float64, rows)
	for r := range rows {
		row, mean, variance := x[r*hidden:][:hidden], 0.0, 0.0
		for _, v := range row {
			mean += v / hidden
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / hidden
		}
		by[r] = 1 / math.Sqrt(variance+epsilon)
		for i, v := range row {
			out[r*hidden+i] = (v - mean) * by[r]
		}
	}
	return out, by
}

func (f *reference) norm(name string, x []float64) []float64 {
	out, _ := normal(x)
	for i := range out {
		out[i] *= f.w[prefix+name+"/gamma"][i%hidden]
	}
	return plus(out, f.w[prefix+name+"/beta"])
}

func (f *reference) normBack(name string, x, dy []float64) []float64 {
	n, by := normal(x)
	scaled, product := make([]float64, len(x)), make([]float64, len(x))
	for i := range x {
		scaled[i], product[i] = dy[i]*f.w[prefix+name+"/gamma"][i%hidden], dy[i]*n[i]
	}
	f.out[name+" gamma"], f.out[name+" beta"] = columns(product, hidden), columns(dy, hidden)
	for r := range rows {
		row, mean, along := scaled[r*hidden:][:hidden], 0.0, 0.0
		for i, v := range row {
			mean += v / hidden
			along += v * n[r*hidden+i] / hidden
		}
		for i := range row {
			row[i] = by[r] * (row[i] - mean - along*n[r*hidden+i])
		}
	}
	f.out[name+"/bwd"] = scaled
	return scaled
}

// head cuts one head of one sequence out of rows, or adds it to them.
func head(x []float64, b, h int, add []float64) []float64 {
	out := make([]float64, length*wide64)
	for s := range length {
		for i := range wide64 {
			at := &x[(b*length+s)*hidden+h*wide64+i]
			if add != nil {
				*at += add[s*wide64+i]
			}
			out[s*wide64+i] = *at
		}
	}
	return out
}

// attend gives the probabilities of one head.
func (f *reference) attend(q, k []float64, b int) []float64 {
	p := times(q, k, length, wide64, length, false, true)
	for r := range length {
		row, sum := p[r*length:][:length], 0.0
		for i := range row {
			row[i] = math.Exp(row[i]*scaling + f.mask[b*length+i])
			sum += row[i]
		}
		for i := range row {
			row[i] /= sum
		}
	}
	return p
}

// step is forward and backward.
func (f *reference) step(x, dy []float64) {
	const self, out = "attention/self/", "attention/output/"
	q, k, v := f.dense(self+"query", x, hidden, hidden), f.dense(self+"key", x, hidden, hidden), f.dense(self+"value", x, hidden, hidden)
	all := func(visit func(b, h int)) {
		for b := range batch {
			for h := range heads {
				visit(b, h)
			}
		}
	}
	context := make([]float64, rows*hidden)
	all(func(b, h int) {
		p := f.attend(head(q, b, h, nil), head(k, b, h, nil), b)
		head(context, b, h, times(p, head(v, b, h, nil), length, length, wide64, false, false))
	})
	a := plus(f.dense(out+"dense", context, hidden, hidden), x)
	n := f.norm(out+"LayerNorm", a)
	m := f.dense("intermediate/dense", n, hidden, inner)
	g, slope := make([]float64, len(m)), make([]float64, len(m))
	for i, z := range m {
		g[i] = z * (1 + math.Erf(z/math.Sqrt2)) / 2
		slope[i] = (1+math.Erf(z/math.Sqrt2))/2 + z*math.Exp(-z*z/2)/math.Sqrt(2*math.Pi)
	}
	e := plus(f.dense("output/dense", g, inner, hidden), n)
	f.out["output/LayerNorm"] = f.norm("output/LayerNorm", e)

	de := f.normBack("output/LayerNorm", e, dy)
	dm := f.denseBack("output/dense", g, de, inner, hidden)
	for i := range dm {
		dm[i] *= slope[i]
	}
	da := f.normBack(out+"LayerNorm", a, plus(f.denseBack("intermediate/dense", n, dm, hidden, inner), de))
	dc := f.denseBack(out+"dense", context, da, hidden, hidden)
	dq, dk, dv := make([]float64, len(x)), make([]float64, len(x)), make([]float64, len(x))
	all(func(b, h int) {
		qh, kh, d := head(q, b, h, nil), head(k, b, h, nil), head(dc, b, h, nil)
		p := f.attend(qh, kh, b)
		head(dv, b, h, times(p, d, length, length, wide64, true, false))
		ds := times(d, head(v, b, h, nil), length, wide64, length, false, true)
		for r := range length {
			dot := 0.0
			for i := range length {
				dot += ds[r*length+i] * p[r*length+i]
			}
			for i := range length {
				ds[r*length+i] = scaling * p[r*length+i] * (ds[r*length+i] - dot)
			}
		}
		head(dq, b, h, times(ds, kh, length, length, wide64, false, false))
		head(dk, b, h, times(ds, qh, length, length, wide64, true, false))
	})
	dx := da
	for i, part := range [][]float64{dq, dk, dv} {
		dx = plus(dx, f.denseBack(self+[]string{"query", "key", "value"}[i], x, part, hidden, hidden))
	}
	f.out["dx"] = dx
}
