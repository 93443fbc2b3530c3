package refnet_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/refnet"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

const seed = 11

func tiny(t testing.TB) (*oplist.Model, *weights.Set) {
	t.Helper()
	list, _ := data.Model("bert_tiny_l2_h128")
	m, err := oplist.Parse("tiny", list)
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(m, seed)
	if err != nil {
		t.Fatal(err)
	}
	return m, set
}

// bert is the encoder of google-research/bert written down from the published
// equations, one token vector at a time, with tensors found by name. It knows
// nothing of op lists, data flow, batches or padding.
type bert struct {
	t      testing.TB
	set    *weights.Set
	cached map[string][]float32
	heads  int
	size   int // of a head
}

func (b bert) w(name string) []float32 {
	if v, ok := b.cached[name]; ok {
		return v
	}
	v, err := b.set.Tensor(name)
	if err != nil {
		b.t.Fatal(err)
	}
	b.cached[name] = v
	return v
}

func (b bert) dense(x []float64, name string) []float64 {
	kernel, bias := b.w(name+"/kernel"), b.w(name+"/bias")
	out := make([]float64, len(bias))
	for j := range out {
		out[j] = float64(bias[j])
		for k, v := range x {
			out[j] += v * float64(kernel[k*len(bias)+j])
		}
	}
	return out
}

func (b bert) norm(x []float64, name string) []float64 {
	gamma, beta := b.w(name+"/gamma"), b.w(name+"/beta")
	mean, second := 0.0, 0.0
	for _, v := range x {
		mean += v / float64(len(x))
		second += v * v / float64(len(x))
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (v-mean)/math.Sqrt(second-mean*mean+1e-12)*float64(gamma[i]) + float64(beta[i])
	}
	return out
}

func plus(x, y []float64) []float64 {
	out := slices.Clone(x)
	for i := range out {
		out[i] += y[i]
	}
	return out
}

func (b bert) pooled(ids []int32, layers int) []float64 {
	width := b.heads * b.size
	row := func(name string, i int) []float64 {
		out := make([]float64, width)
		for j := range out {
			out[j] = float64(b.w(name)[i*width+j])
		}
		return out
	}
	x := make([][]float64, len(ids))
	for s, id := range ids {
		sum := plus(row("bert/embeddings/word_embeddings", int(id)), row("bert/embeddings/token_type_embeddings", 0))
		x[s] = b.norm(plus(sum, row("bert/embeddings/position_embeddings", s)), "bert/embeddings/LayerNorm")
	}
	for l := range layers {
		scope := fmt.Sprintf("bert/encoder/layer_%d/", l)
		q, k, v := make([][]float64, len(x)), make([][]float64, len(x)), make([][]float64, len(x))
		for s := range x {
			q[s] = b.dense(x[s], scope+"attention/self/query")
			k[s] = b.dense(x[s], scope+"attention/self/key")
			v[s] = b.dense(x[s], scope+"attention/self/value")
		}
		for s := range x {
			context := make([]float64, width)
			for h := range b.heads {
				part := func(y []float64) []float64 { return y[h*b.size : (h+1)*b.size] }
				weight, sum := make([]float64, len(x)), 0.0
				for j := range x {
					dot := 0.0
					for d, qv := range part(q[s]) {
						dot += qv * part(k[j])[d]
					}
					weight[j] = math.Exp(dot / math.Sqrt(float64(b.size)))
					sum += weight[j]
				}
				for j := range x {
					for d, vv := range part(v[j]) {
						context[h*b.size+d] += weight[j] / sum * vv
					}
				}
			}
			attended := b.norm(plus(b.dense(context, scope+"attention/output/dense"), x[s]), scope+"attention/output/LayerNorm")
			inner := b.dense(attended, scope+"intermediate/dense")
			for i, a := range inner {
				inner[i] = a * math.Erfc(-a/math.Sqrt2) / 2
			}
			x[s] = b.norm(plus(b.dense(inner, scope+"output/dense"), attended), scope+"output/LayerNorm")
		}
	}
	out := b.dense(x[0], "bert/pooler/dense")
	for i, v := range out {
		out[i] = math.Tanh(v)
	}
	return out
}

func TestForwardIsBert(t *testing.T) {
	m, set := tiny(t)
	net := refnet.New(m, set)
	plain := bert{t, set, map[string][]float32{}, 2, 64}
	for place, n := range []int{1, 2, 5, 13} {
		ids := weights.Tokens(seed, place, n, m.Vocab)
		got, err := net.Forward([][]int32{ids}, []int{n})
		if err != nil {
			t.Fatal(err)
		}
		want := plain.pooled(ids, 2)
		for i := range want {
			if math.Abs(got[0][i]-want[i]) > 1e-11 {
				t.Fatalf("%d tokens: value %d is %v, the equations give %v", n, i, got[0][i], want[i])
			}
		}
	}
}

// A request's output is the same, to the bit, alone and in a padded batch,
// whatever the padding holds. E8
func TestPaddingAndBatchDoNotShow(t *testing.T) {
	m, set := tiny(t)
	net := refnet.New(m, set)
	lengths := []int{3, 11, 1, 7}
	batch := make([][]int32, len(lengths))
	for b, n := range lengths {
		batch[b] = append(weights.Tokens(seed, b, n, m.Vocab), weights.Tokens(99, b, 12-n, m.Vocab)...)
	}
	together, err := net.Forward(batch, lengths)
	if err != nil {
		t.Fatal(err)
	}
	for b, n := range lengths {
		alone, err := net.Forward([][]int32{batch[b][:n]}, []int{n})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(alone[0], together[b]) {
			t.Errorf("request %d of %d tokens differs in a batch", b, n)
		}
	}
	if slices.Equal(together[0], together[1]) {
		t.Error("two requests have the same output")
	}
}

// A model without the pooler gives a row for every token that is not padding.
func TestOutputPerToken(t *testing.T) {
	list, _ := data.Model("bert_tiny_l2_h128")
	lines := strings.Split(string(list), "\n")
	lines[0] = `{"model": "m", "symbols": {"B": "b", "S": "s"}, "dtype": "f32", "ops": 41}`
	m, err := oplist.Parse("m", []byte(strings.Join(lines[:42], "\n")))
	if err != nil {
		t.Fatal(err)
	}
	if !m.PerToken {
		t.Fatal("the model without a pooler is not per token")
	}
	set, err := weights.Open(m, seed)
	if err != nil {
		t.Fatal(err)
	}
	net := refnet.New(m, set)
	ids := weights.Tokens(seed, 0, 9, m.Vocab)
	got, err := net.Forward([][]int32{ids, ids}, []int{4, 9})
	if err != nil {
		t.Fatal(err)
	}
	if len(got[0]) != 4*128 || len(got[1]) != 9*128 {
		t.Fatalf("%d and %d values, want %d and %d", len(got[0]), len(got[1]), 4*128, 9*128)
	}
	for _, at := range []int{0, 3, 8} {
		row, mean := got[1][at*128:(at+1)*128], 0.0
		for _, v := range row {
			mean += v * v / 128
		}
		if mean < 0.5 || mean > 2 { // a layer norm's rows have a mean square near 1
			t.Errorf("token %d has mean square %v", at, mean)
		}
	}
}

// The generated weights keep a pass well conditioned: a change of the weights
// by one part in 10^7 moves no output by more than 10^-5, so a float32 engine
// can be held to 10^-4.
func TestGeneratedWeightsAreSane(t *testing.T) {
	m, set := tiny(t)
	ids := [][]int32{weights.Tokens(seed, 0, 20, m.Vocab)}
	base, err := refnet.New(m, set).Forward(ids, []int{20})
	if err != nil {
		t.Fatal(err)
	}
	nudged, err := refnet.New(m, nudge{set}).Forward(ids, []int{20})
	if err != nil {
		t.Fatal(err)
	}
	moved, saturated := 0.0, 0
	for i, v := range base[0] {
		moved = max(moved, math.Abs(v-nudged[0][i]))
		if math.Abs(v) > 0.999 {
			saturated++
		}
	}
	if moved == 0 || moved > 1e-5 {
		t.Errorf("the output moved by %g", moved)
	}
	if saturated > len(base[0])/10 {
		t.Errorf("%d of %d outputs are saturated", saturated, len(base[0]))
	}
}

type nudge struct{ *weights.Set }

func (n nudge) Tensor(name string) ([]float32, error) {
	v, err := n.Set.Tensor(name)
	for i := range v {
		v[i] = math.Nextafter32(v[i], float32(1-2*(i%2))*math.MaxFloat32)
	}
	return v, err
}

func TestForwardConcurrent(t *testing.T) {
	m, set := tiny(t)
	net := refnet.New(m, set)
	ids := [][]int32{weights.Tokens(seed, 0, 6, m.Vocab)}
	want, err := refnet.New(m, set).Forward(ids, []int{6})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			got, err := net.Forward(ids, []int{6})
			if err != nil || !slices.Equal(got[0], want[0]) {
				t.Errorf("another output, %v", err)
			}
		})
	}
	wg.Wait()
}

func TestForwardErrors(t *testing.T) {
	m, set := tiny(t)
	net := refnet.New(m, set)
	long := make([]int32, 513)
	for name, c := range map[string]struct {
		ids     [][]int32
		lengths []int
	}{
		"no rows":      {nil, nil},
		"no ids":       {[][]int32{{}}, []int{0}},
		"no lengths":   {[][]int32{{1}}, nil},
		"ragged":       {[][]int32{{1, 2}, {1}}, []int{1, 1}},
		"zero length":  {[][]int32{{1}}, []int{0}},
		"over length":  {[][]int32{{1}}, []int{2}},
		"negative id":  {[][]int32{{-1}}, []int{1}},
		"unknown word": {[][]int32{{30522}}, []int{1}},
		"too long":     {[][]int32{long}, []int{513}},
	} {
		if out, err := net.Forward(c.ids, c.lengths); !errors.Is(err, fault.ErrInvalid) || out != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := refnet.New(m, short{}).Forward([][]int32{{1}}, []int{1}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a tensor of another size: %v", err)
	}
}

type short struct{}

func (short) Tensor(string) ([]float32, error) { return []float32{1}, nil }

func BenchmarkForward(b *testing.B) {
	list, _ := data.Model("minilm_l6_h384")
	m, err := oplist.Parse("minilm", list)
	if err != nil {
		b.Fatal(err)
	}
	set, err := weights.Open(m, seed)
	if err != nil {
		b.Fatal(err)
	}
	net := refnet.New(m, set)
	ids := [][]int32{weights.Tokens(seed, 0, 20, m.Vocab)}
	for b.Loop() {
		if _, err := net.Forward(ids, []int{20}); err != nil {
			b.Fatal(err)
		}
	}
}
