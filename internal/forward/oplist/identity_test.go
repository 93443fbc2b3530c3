package oplist_test

import (
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// Identities are part of keys in stores: their text is that of the package fmt.
func TestIdentityIsWhatFmtPrints(t *testing.T) {
	text, _ := data.Model("minilm_l6_h384")
	m, err := oplist.Parse("list", text)
	if err != nil {
		t.Fatal(err)
	}
	weights := func(op *oplist.Op) (s string) {
		for _, w := range op.Weights {
			s += fmt.Sprintf("%v ", w.Shape)
		}
		return s + fmt.Sprintf("%q", op.Attr.Text)
	}
	bound, err := m.At(2, 14)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bound {
		if got, want := b.Identity(), fmt.Sprintf("%s %v %v ", b.Kind, b.Src, b.Dst)+weights(b.Op); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if got, want := b.Op.Identity(), fmt.Sprintf("%s %v %v ", b.Kind, b.Op.Src, b.Op.Dst)+weights(b.Op); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if n := testing.AllocsPerRun(10, func() { _ = b.Identity() }); n > 2 {
			t.Errorf("%s: %v allocations, want at most 2", b.Identity(), n)
		}
	}
	if n := testing.AllocsPerRun(10, func() { _, _ = m.At(2, 14) }); n > 10 {
		t.Errorf("%v allocations for all operations of a shape, want at most 10", n)
	}
}
