package gemm

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"testing"
)

// P3: what a layout's name means never changes, since packed matrices outlive the program in
// stores. Whoever packs otherwise needs another name, here and for the weights that are stored.
func TestLayoutsAreForEver(t *testing.T) {
	const k, n = 5, 70
	w := make([]float32, k*n)
	for i := range w {
		w[i] = float32(i) + 1.0/3
	}
	for name, want := range map[string]string{
		"panels-4":           "d75d8441fa372e76",
		"panels-16":          "49c97314d9de6413",
		"panels-32":          "cdf7f6f0ba0a308e",
		"panels-4-bfloat16":  "de01c94fddee7f78",
		"panels-16-bfloat16": "dce94da943958772",
		"panels-32-bfloat16": "bdd296f54762ee6a",
	} {
		s := &Set{}
		if _, err := fmt.Sscanf(name, "panels-%d", &s.width); err != nil {
			t.Fatal(err)
		}
		if s.row = s.width; name != s.Layout() {
			s = s.Halves()
		}
		packed := make([]float32, s.PackedLen(k, n))
		if err := s.Pack(packed, w, k, n, false); err != nil || s.Layout() != name {
			t.Fatalf("%s: %v", s.Layout(), err)
		}
		text, err := binary.Append(nil, binary.LittleEndian, packed)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(text))[:16]; got != want {
			t.Errorf("%q: %q", name, got)
		}
	}
	known := map[int]bool{4: true, 16: true, 32: true}
	for _, s := range Sets() {
		if !known[s.width] {
			t.Errorf("%s has the layout %s, which is not in the table", s.Name(), s.Layout())
		}
	}
}
