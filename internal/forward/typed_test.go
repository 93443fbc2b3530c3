package forward_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/refnet"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

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
