package primitive_test

import (
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// K3, D1: a skip list is a set: its order, and what it names twice, change no key.
func TestSkipIsASet(t *testing.T) {
	key := func(skip ...int) string {
		s := primitive.Spec{Kind: "matmul", Skip: skip}
		k, _, err := s.Keys("b", gpuexec.Identity{Library: "l", Build: "b"})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	for _, same := range [][]int{{2, 1}, {1, 2, 2}, {2, 1, 2, 1}} {
		if key(same...) != key(1, 2) {
			t.Errorf("skip %v and [1 2] are two keys", same)
		}
	}
	if key(1) == key(1, 2) || key() == key(0) {
		t.Error("another set has the same key")
	}
}
