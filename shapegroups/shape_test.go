package shapegroups_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/shapegroups"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// K1: lists carry their lengths.
func TestShapeIdentity(t *testing.T) {
	texts := []string{
		"[[1,2],[3]]", "[[1],[2,3]]", "[[1,2,3]]", "[[1],[2],[3]]", "[[3],[1,2]]", "[[1,2],[3],[]]",
		"[[]]", "[[],[]]", "[[0]]", "[[128]]", "[[0,1]]", "[[1,0]]",
	}
	seen := map[shapegroups.Shape]string{}
	for _, text := range texts {
		s, err := shapegroups.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[s]; ok {
			t.Errorf("%s equals %s", text, other)
		}
		seen[s] = text
		if s.String() != text {
			t.Errorf("%s prints as %s", text, s)
		}
	}
	if must(shapegroups.Parse("7")) != must(shapegroups.Of([]int64{7})) || must(shapegroups.N(7)).String() != "[[7]]" {
		t.Error("7 is not [[7]]")
	}
	if (shapegroups.Shape{}).String() != "[]" || !(shapegroups.Shape{}).IsZero() || (shapegroups.Shape{}).Elements() != 0 {
		t.Error("the zero shape is not empty")
	}
}

// K2: the hashes of shapes that are much alike differ, also in their lower half, and where
// the difference is at the end of a long one.
func TestShapeHash(t *testing.T) {
	const shapes = 10_000
	for _, dims := range [][]int64{{8, 12, 0, 64}, append(make([]int64, 40), 0, 1)} {
		seen := map[uint32]bool{}
		for n := range int64(shapes) {
			dims[len(dims)-2] = n
			seen[uint32(must(shapegroups.Of(dims)).Hash())] = true
		}
		if len(seen) < shapes-10 {
			t.Errorf("%d shapes of %d dimensions have %d hashes", shapes, len(dims), len(seen))
		}
	}
}

// K1: every shape survives its text, its key and its lists.
func TestShapeRoundTrip(t *testing.T) {
	dim := rapid.OneOf(rapid.Int64Range(0, 300), rapid.Int64Range(0, 1<<20))
	lists := rapid.SliceOfN(rapid.SliceOfN(dim, 0, 3), 1, 5)
	rapid.Check(t, func(t *rapid.T) {
		dims := lists.Draw(t, "dims")
		s := must(shapegroups.Of(dims...))
		if got := must(shapegroups.Parse(s.String())); got != s {
			t.Fatalf("%v parsed as %v", s, got)
		}
		if got := must(shapegroups.FromKey(s.Key())); got != s {
			t.Fatalf("%v from its key is %v", s, got)
		}
		elements := int64(0)
		for i, list := range s.Dims() {
			if !slices.Equal(list, dims[i]) {
				t.Fatalf("input %d is %v, was %v", i, list, dims[i])
			}
			n := int64(1)
			for _, d := range list {
				n *= d
			}
			elements += n
		}
		if s.Elements() != elements || len(s.Dims()) != len(dims) {
			t.Fatalf("%v has %d elements, want %d", s, s.Elements(), elements)
		}
		other := lists.Draw(t, "other")
		if same := slices.EqualFunc(dims, other, slices.Equal[[]int64]); same != (s == must(shapegroups.Of(other...))) {
			t.Fatalf("%v and %v: equal lists %v, equal shapes %v", dims, other, same, !same)
		}
	})
}

// A bad shape is a typed error.
func TestShapeErrors(t *testing.T) {
	long := make([]int64, shapegroups.MaxRank+1)
	for name, dims := range map[string][][]int64{
		"no inputs":         nil,
		"negative":          {{1, -1}},
		"absurd":            {{shapegroups.MaxDim + 1}},
		"lowest":            {{math.MinInt64}},
		"rank":              {long},
		"inputs":            make([][]int64, shapegroups.MaxInputs+1),
		"product":           {{1 << 40, 1 << 40}},
		"just over":         {{1 << 32, 1 << 31}},
		"sum":               {{1 << 31, 1 << 31}, {1 << 31, 1 << 31}},
		"wraps to a little": {{1 << 32, 1 << 32, 1}},
	} {
		if s, err := shapegroups.Of(dims...); !errors.Is(err, shapegroups.ErrInvalid) || !s.IsZero() {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if s, err := shapegroups.Of([]int64{1 << 40, 0, 1 << 40}); err != nil || s.Elements() != 0 {
		t.Errorf("an empty tensor of large dimensions: %v, %v", s.Elements(), err)
	}
	for _, text := range []string{
		"", "[", "[]", "[[1]", "[1]]", "[1]", "[[1],]", "[[1,]]", "[[,1]]", "[[1]]x", "x", "-1", "+1", "01", " 1", "1 ",
		"[[ 1]]", "[[1], [2]]", "[[1][2]]", "[[0x1]]", "[[1e3]]", "99999999999999999999", "[[-1]]", "[[[1]]]", "[[1_0]]",
	} {
		if s, err := shapegroups.Parse(text); !errors.Is(err, shapegroups.ErrInvalid) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
}

// Comparing and using a shape as a key allocates nothing.
func TestShapeAllocations(t *testing.T) {
	a, b := must(shapegroups.Parse("[[1,2],[3]]")), must(shapegroups.Parse("[[1,2],[3]]"))
	known := map[shapegroups.Shape]int{a: 1}
	hits := 0
	if n := testing.AllocsPerRun(100, func() {
		if a == b && b.Elements() == 5 {
			hits += known[b]
		}
	}); n != 0 || hits == 0 {
		t.Errorf("%v allocations, %d hits", n, hits)
	}
}

// Any text is refused with a typed error or is the text of its own shape.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"7", "[[1,2],[3]]", "[[]]", "[[1],[],[2,3]]", "[[1,]]", "0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := shapegroups.Parse(text)
		if err != nil {
			if !errors.Is(err, shapegroups.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if got := s.String(); got != text && got != "[["+text+"]]" {
			t.Fatalf("%q is read as %s", text, got)
		}
	})
}

// Any bytes are refused or are the very key of a shape: one shape, one key.
func FuzzFromKey(f *testing.F) {
	for _, text := range []string{"7", "[[1,2],[300]]", "[[]]"} {
		f.Add([]byte(must(shapegroups.Parse(text)).Key()))
	}
	f.Add([]byte{1, 1, 0x80, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, key []byte) {
		s, err := shapegroups.FromKey(string(key))
		if err != nil {
			if !errors.Is(err, shapegroups.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		if s.Key() != string(key) || must(shapegroups.Of(s.Dims()...)) != s {
			t.Fatalf("%x is read as %x", key, s.Key())
		}
	})
}
