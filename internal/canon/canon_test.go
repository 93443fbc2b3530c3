package canon

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

var schema = Schema{1: {Text: "kind"}, 2: {Text: "dims", Inside: Schema{1: {Text: ""}}}, 3: {Text: "attr", Inside: Schema{1: {Text: "alpha"}, 2: {Text: "exact"}}}, 4: {Text: "delta"}}

func sample(dst []byte) []byte {
	dst = AppendString(dst, 1, "conv")
	dst = AppendGroup(dst, 2, 2)
	dst = AppendInts(dst, 1, []int64{1, -2})
	dst = AppendInts(dst, 1, []int{3})
	dst = AppendGroup(dst, 3, 2)
	dst = AppendFloat(dst, 1, 0.5)
	dst = AppendBool(dst, 2, true)
	return AppendInt(dst, 4, math.MinInt64)
}

// appended is Walk's opposite.
func appended(dst []byte, v Value) []byte {
	switch v.Type {
	case Uint:
		return AppendUint(dst, v.Tag, v.Uint)
	case Int:
		return AppendInt(dst, v.Tag, v.Int)
	case Bytes:
		return AppendString(dst, v.Tag, v.Bytes)
	case Float:
		return AppendFloat(dst, v.Tag, v.Float)
	case Ints:
		return AppendInts(dst, v.Tag, v.Ints)
	}
	dst = AppendGroup(dst, v.Tag, len(v.Values))
	for _, inner := range v.Values {
		dst = appended(dst, inner)
	}
	return dst
}

func TestFields(t *testing.T) { // R2
	for want, enc := range map[string][]byte{
		"[{kind conv} {dims[0] [1,-2]} {dims[1] [3]} {attr.alpha 0.5} {attr.exact 1} {delta -9223372036854775808}]": sample(nil),
		`[{#9 1} {dims []} {kind "a b"}]`: AppendString(AppendGroup(AppendUint(nil, 9, 1), 2, 0), 1, "a b"),
	} {
		if got, err := Fields(enc, schema); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

func TestEncodingAllocatesNothing(t *testing.T) { // D4
	buf := make([]byte, 0, 256)
	dims, kind := []int64{1, 2, 3}, "convolution"
	if n := testing.AllocsPerRun(100, func() {
		b := AppendInts(AppendString(buf, 1, kind), 2, dims)
		_ = AppendFloat(AppendGroup(b, 3, 1), 1, 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestOnlyCanonical(t *testing.T) { // K1, P4
	for name, enc := range map[string][]byte{
		"long uvarint":    {1 << 3, 0x80, 0x00},
		"cut off":         {1<<3 | 2, 5, 'a'},
		"no body":         {1 << 3},
		"unknown type":    {1<<3 | 7, 0},
		"float cut":       {1<<3 | 3, 1, 2},
		"absurd length":   {1<<3 | 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"absurd tag":      {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x78, 0},
		"group cut":       {1<<3 | 5, 2, 1 << 3, 0},
		"nested too deep": append(bytes.Repeat([]byte{1<<3 | 5, 1}, 64), 1<<3, 0),
	} {
		if v, err := Walk(enc); !errors.Is(err, ErrEncoding) {
			t.Errorf("%s: %v, %v", name, v, err)
		}
	}
}

// values makes any value, nested ones too.
func values(depth int) *rapid.Generator[Value] {
	return rapid.Custom(func(t *rapid.T) Value {
		types := []Type{Uint, Int, Bytes, Float, Ints, Group}
		if depth == 0 {
			types = types[:5]
		}
		v := Value{Tag: Tag(rapid.Uint32().Draw(t, "tag")), Type: rapid.SampledFrom(types).Draw(t, "type")}
		switch v.Type {
		case Uint:
			v.Uint = rapid.Uint64().Draw(t, "uint")
		case Int:
			v.Int = rapid.Int64().Draw(t, "int")
		case Bytes:
			v.Bytes = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		case Float:
			v.Float = rapid.Float64().Draw(t, "float")
		case Ints:
			v.Ints = rapid.SliceOf(rapid.Int64()).Draw(t, "ints")
		case Group:
			v.Values = rapid.SliceOfN(values(depth-1), 0, 4).Draw(t, "values")
		}
		return v
	})
}

// Two lists of values have one encoding exactly if they print alike (K1).
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var enc []byte
		list := rapid.SliceOfN(values(3), 0, 5).Draw(t, "list")
		for _, v := range list {
			enc = appended(enc, v)
		}
		back, err := Walk(enc)
		if err != nil || len(back) != len(list) {
			t.Fatalf("%d of %d values, %v", len(back), len(list), err)
		}
		var again []byte
		for _, v := range back {
			again = appended(again, v)
		}
		if !bytes.Equal(enc, again) {
			t.Fatalf("%x came back as %x", enc, again)
		}
		if _, err := Fields(enc, nil); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzWalk(f *testing.F) {
	f.Add(sample(nil))
	f.Fuzz(func(t *testing.T, enc []byte) {
		values, err := Walk(enc)
		if err != nil {
			return
		}
		var again []byte
		for _, v := range values {
			again = appended(again, v)
		}
		if !bytes.Equal(enc, again) {
			t.Fatalf("%x came back as %x", enc, again)
		}
	})
}
