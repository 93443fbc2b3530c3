package forward_test

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/refnet"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

// T3: models that are prepared at once prepare each weight once between them, and both have
// all of them then.
func TestPrepareBeside(t *testing.T) {
	b := open(t, tinyList(perToken))
	var next atomic.Int64
	var wg sync.WaitGroup
	models := make([]*forward.Model, 3)
	errs := make([]error, len(models))
	for i := range models {
		models[i], _ = b.packed(kiln.SessionConfig{})
	}
	for i, m := range models {
		wg.Go(func() { errs[i] = m.PrepareBeside(bg, &next) })
	}
	wg.Wait()
	var all forward.Constants
	tensors := int64(len(b.ops.Weights))
	for i, m := range models {
		c := m.Constants()
		all.Owners, all.Bypass = all.Owners+c.Owners, all.Bypass+c.Bypass
		if errs[i] != nil || c.Hits+c.Owners != tensors {
			t.Errorf("model %d: %+v of %d, %v", i, c, tensors, errs[i])
		}
	}
	if all.Owners != tensors || all.Bypass != 0 {
		t.Errorf("%d weights were prepared, %d are there", all.Owners, tensors)
	}
}

// The types of tokens count, in padded batches and in ragged ones, as the reference in
// float64 has it; those of one request are not those of its neighbours (E8).
func TestTypes(t *testing.T) {
	list := tinyList(perToken)
	b := open(t, list)
	parsed, err := oplist.Parse("typed", []byte(list))
	if err != nil {
		t.Fatal(err)
	}
	set, err := weights.Open(parsed, seed)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	net := refnet.New(parsed, set)
	rows, types := [][]int32{b.ids(0, 7), b.ids(1, 12), b.ids(2, 3)}, [][]int32{{0, 0, 0, 1, 1, 1, 1}, nil, {0, 1, 0}}
	padded, _ := b.model(kiln.SessionConfig{})
	packed, _ := b.packed(kiln.SessionConfig{Bucket: geometric(t)})
	for name, m := range map[string]*forward.Model{"padded": padded, "packed": packed} {
		all, err := m.RunTyped(bg, rows, types)
		if err != nil {
			t.Fatal(err)
		}
		rest := all.Output
		for i, row := range rows {
			want, err := net.ForwardTyped([][]int32{row}, [][]int32{append(slices.Clone(types[i]), make([]int32, len(row)-len(types[i]))...)}, []int{len(row)})
			if err != nil {
				t.Fatal(err)
			}
			n := len(want[0])
			if d, err := forward.Compare(rest[:n], want[0]); err != nil || d.Relative > 1e-5 {
				t.Errorf("%s, row %d: %+v, %v", name, i, d, err)
			}
			alone, err := m.RunTyped(bg, rows[i:i+1], types[i:i+1])
			if err != nil || !slices.Equal(alone.Output, rest[:n]) {
				t.Errorf("%s, row %d: other bits alone, %v", name, i, err)
			}
			rest = rest[n:]
		}
		for what, types := range map[string][][]int32{"rows": {{0}}, "a row": {{0}, nil, nil}, "a type": {nil, nil, {0, 2, 0}}, "below 0": {nil, nil, {0, -1, 0}}} {
			if _, err := m.RunTyped(bg, rows, types); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s, wrong %s: %v", name, what, err)
			}
		}
	}
}
