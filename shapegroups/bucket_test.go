package shapegroups_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/shapegroups"
)

// S4
func TestBucketing(t *testing.T) {
	for _, c := range []struct{ bucket, asked, compiled string }{
		{"exact", "37", "37"},
		{"multiple:16", "1", "16"}, {"multiple:16", "16", "16"}, {"multiple:16", "17", "32"}, {"multiple:16", "0", "0"},
		{"pow2", "1", "1"}, {"pow2", "64", "64"}, {"pow2", "65", "128"}, {"pow2", "0", "0"},
		{"geometric:8", "1", "1"}, {"geometric:8", "7", "7"}, {"geometric:8", "8", "8"}, {"geometric:8", "15", "15"},
		{"geometric:8", "17", "18"}, {"geometric:8", "19", "20"}, {"geometric:8", "21", "22"}, {"geometric:8", "31", "32"},
		{"geometric:8", "100", "104"}, {"geometric:8", "1000", "1024"}, {"geometric:8", "1025", "1152"},
		{"geometric", "1025", "1152"}, {"geometric:1", "5", "8"}, {"geometric:3", "18", "20"},
		{"pow2", "[[3,5],[],[6]]", "[[3,8],[],[8]]"}, // the last dimension of every input
	} {
		b, err := shapegroups.ParseBucketing(c.bucket)
		if err != nil {
			t.Fatal(err)
		}
		asked, want := must(shapegroups.Parse(c.asked)), must(shapegroups.Parse(c.compiled))
		if got, err := b.Map(asked); err != nil || got != want {
			t.Errorf("%s of %s is %s (%v), want %s", c.bucket, c.asked, got, err, want)
		}
	}
}

// S4: a session may name other dimensions.
func TestBucketingOn(t *testing.T) {
	pow2 := must(shapegroups.ParseBucketing("pow2"))
	three := must(shapegroups.ParseBucketing("geometric:3"))
	asked := must(shapegroups.Parse("[[3,5,31],[7]]"))
	for _, c := range []struct {
		bucket shapegroups.Bucketing
		axes   []shapegroups.Axis
		want   string
	}{
		{pow2, []shapegroups.Axis{{0, 1}}, "[[3,8,31],[7]]"},
		{pow2, []shapegroups.Axis{{0, 0}, {1, -1}}, "[[4,5,31],[8]]"},
		{pow2, []shapegroups.Axis{}, "[[3,5,31],[7]]"},
		{three, []shapegroups.Axis{{0, 2}, {0, -1}}, "[[3,5,35],[7]]"}, // once, though named twice
	} {
		got, err := must(c.bucket.On(c.axes...)).Map(asked)
		if err != nil || got.String() != c.want {
			t.Errorf("%s on %v: %s (%v), want %s", c.bucket, c.axes, got, err, c.want)
		}
	}
	for _, axis := range []shapegroups.Axis{{2, 0}, {0, 3}, {1, -2}} {
		if _, err := must(pow2.On(axis)).Map(asked); !errors.Is(err, shapegroups.ErrInvalid) {
			t.Errorf("%v: %v", axis, err)
		}
	}
	for _, axis := range []shapegroups.Axis{{-1, 0}, {0, math.MaxInt}, {0, math.MinInt}} {
		if _, err := pow2.On(axis); !errors.Is(err, shapegroups.ErrInvalid) {
			t.Errorf("%v: %v", axis, err)
		}
	}
}

func TestParseBucketing(t *testing.T) {
	for _, text := range []string{
		"", "third", "multiple", "multiple:", "multiple:0", "multiple:-1", "multiple:+1", "multiple:1.5", "multiple:016",
		"multiple:16:2", "pow2:2", "exact:1", "geometric:", "geometric:0", "Exact", " exact", "multiple:99999999999999999999",
	} {
		if b, err := shapegroups.ParseBucketing(text); !errors.Is(err, shapegroups.ErrInvalid) {
			t.Errorf("%q: %v, %v", text, b, err)
		}
	}
	for text, want := range map[string]string{"exact": "exact", "pow2": "pow2", "multiple:16": "multiple:16", "geometric": "geometric:8"} {
		if b, err := shapegroups.ParseBucketing(text); err != nil || b.String() != want || b.Exact() != (want == "exact") {
			t.Errorf("%q: %v, %v", text, b, err)
		}
	}
}

// S4: rounding never goes down, keeps the order, and pads geometric:K by less
// than one part in K; nothing overflows.
func TestRound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"multiple:1", "multiple:7", "multiple:281474976710656", "pow2", "geometric:1", "geometric:8", "geometric:64"}).Draw(t, "bucket")
		b := must(shapegroups.ParseBucketing(text))
		n := rapid.OneOf(rapid.Int64Range(1, 5000), rapid.Int64Range(1, shapegroups.MaxDim)).Draw(t, "n")
		up, next := b.Round(n), b.Round(n+1)
		if up < n || next < up || b.Round(up) != up {
			t.Fatalf("%s: %d to %d, %d to %d, again %d", text, n, up, n+1, next, b.Round(up))
		}
		if text == "geometric:8" && (up-n)*8 >= n {
			t.Fatalf("%d padded to %d", n, up)
		}
	})
	top := must(shapegroups.N(shapegroups.MaxDim - 1))
	if _, err := must(shapegroups.ParseBucketing("multiple:281474976710655")).Map(must(shapegroups.N(shapegroups.MaxDim))); !errors.Is(err, shapegroups.ErrInvalid) {
		t.Errorf("beyond the limit: %v", err)
	}
	if got, err := must(shapegroups.ParseBucketing("pow2")).Map(top); err != nil || got.Elements() != shapegroups.MaxDim {
		t.Errorf("up to the limit: %v, %v", got, err)
	}
}

// S4: padding is counted in elements of the shapes asked and compiled.
func TestPadding(t *testing.T) {
	b := must(shapegroups.ParseBucketing("multiple:16"))
	var p shapegroups.Padding
	for _, n := range []int64{10, 16, 3, 17} {
		asked := must(shapegroups.N(n))
		p.Add(asked, must(b.Map(asked)))
	}
	if p != (shapegroups.Padding{Asked: 46, Compiled: 80}) {
		t.Errorf("%+v", p)
	}
	huge := must(shapegroups.Of([]int64{1 << 31, 1 << 31}))
	for range 3 {
		p.Add(huge, huge)
	}
	if p.Asked != 1<<63-1 || p.Compiled != 1<<63-1 {
		t.Errorf("sums wrapped: %+v", p)
	}
}
