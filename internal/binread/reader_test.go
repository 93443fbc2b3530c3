package binread_test

import (
	"math"
	"testing"

	"github.com/kiln-cache/kiln/internal/binread"
)

// P3, P4: no length is believed, and a short read stays one.
func TestReader(t *testing.T) {
	r := binread.Reader{Rest: []byte{1, 2, 'a', 'b', 'c'}}
	if n := r.Uint(2); n != 0x0201 {
		t.Errorf("number %#x", n)
	}
	if s := r.Take(2); string(s) != "ab" || cap(s) != 2 || r.Short {
		t.Errorf("took %q with room for %d, short %v", s, cap(s), r.Short)
	}
	if s := r.Take(math.MaxUint64); s != nil || !r.Short || string(r.Rest) != "c" {
		t.Errorf("too much gave %q, short %v, rest %q", s, r.Short, r.Rest)
	}
	if r.Take(1) != nil || r.Uint(1) != 0 {
		t.Error("a short reader gives nothing more")
	}
}
