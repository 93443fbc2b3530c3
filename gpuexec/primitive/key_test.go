package primitive

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// full has something in every field, two elements in every list.
func full() *Spec {
	s := &Spec{}
	n := 0
	fill(reflect.ValueOf(s).Elem(), &n)
	return s
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("t%03d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n + 1))
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.Uint8:
		v.SetUint(uint64(*n % 251))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	default:
		panic("fill: " + v.Type().String())
	}
}

// change calls try for every single change that is possible inside v: another
// value of a leaf, one element more or less of a list, two elements swapped.
func change(v reflect.Value, path string, try func(path string)) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			change(v.Field(i), path+"."+v.Type().Field(i).Name, try)
		}
	case reflect.Slice:
		old := reflect.ValueOf(v.Interface())
		for i := range v.Len() {
			change(v.Index(i), fmt.Sprintf("%s[%d]", path, i), try)
		}
		v.Set(old.Slice(0, old.Len()-1))
		try(path + " one less")
		more := reflect.New(v.Type().Elem()).Elem()
		n := 5000
		fill(more, &n)
		v.Set(reflect.Append(old.Slice3(0, old.Len(), old.Len()), more))
		try(path + " one more")
		swapped := reflect.MakeSlice(v.Type(), 2, 2)
		swapped.Index(0).Set(old.Index(1))
		swapped.Index(1).Set(old.Index(0))
		v.Set(swapped)
		try(path + " swapped")
		v.Set(old)
	default:
		old := reflect.ValueOf(v.Interface())
		switch v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int, reflect.Int64:
			v.SetInt(-v.Int())
		case reflect.Uint64, reflect.Uint8:
			v.SetUint(v.Uint() ^ 1)
		case reflect.Float64:
			v.SetFloat(-v.Float())
		}
		try(path)
		v.Set(old)
	}
}

// differ is in how many outermost fields two keys differ.
func differ(t *testing.T, a, b string) (n int) {
	t.Helper()
	texts := map[string]*[2]string{}
	for side, key := range []string{a, b} {
		fields, err := canon.Fields([]byte(key), schema)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fields {
			name := f.Path[:strings.IndexAny(f.Path+".", ".[")]
			if texts[name] == nil {
				texts[name] = new([2]string)
			}
			texts[name][side] += f.Path + "=" + f.Value + " "
		}
	}
	for _, text := range texts {
		if text[0] != text[1] {
			n++
		}
	}
	return n
}

func TestEveryFieldAlone(t *testing.T) { // K4
	s := full()
	base, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	basePortable, _ := s.append(nil, false)
	seen := map[string]string{base: "the key itself"}
	changes := 0
	change(reflect.ValueOf(s).Elem(), "", func(path string) {
		changes++
		key, err := s.Key()
		if err != nil {
			t.Errorf("%s: %v", path, err)
			return
		}
		orderless := strings.HasSuffix(path, " swapped") &&
			(strings.HasPrefix(path, ".Skip ") || strings.HasPrefix(path, ".Attr.Scales ") || strings.HasPrefix(path, ".Attr.ZeroPoints ") || strings.HasPrefix(path, ".Attr.Rounding "))
		if other, taken := seen[key]; taken != orderless {
			t.Errorf("%s: the key is that of %q", path, other)
		}
		seen[key] = path
		portable, _ := s.append(nil, false)
		if here := path == ".Device" || path == ".Context" || orderless; (string(portable) == string(basePortable)) != here {
			t.Errorf("%s: the form on disk does as it should not", path)
		}
		if n := differ(t, base, key); n != 1 && !orderless {
			t.Errorf("%s differs in %d fields", path, n)
		}
	})
	if changes < 200 {
		t.Errorf("only %d changes tried", changes)
	}
	if again, _ := full().Key(); again != base {
		t.Error("the same spec has another key")
	}
}

func TestListsCarryTheirLengths(t *testing.T) { // K1
	shapes := [][][]int64{{{1, 2}, {3}}, {{1}, {2, 3}}, {{1, 2, 3}}, {{12}, {3}}, {{1, 2}, {3}, {}}, {{}, {1, 2}, {3}}, {}}
	seen := map[string]int{}
	for i, shape := range shapes {
		s := Spec{Kind: "concat"}
		for _, dims := range shape {
			s.Op.Tensors = append(s.Op.Tensors, Tensor{Dims: dims})
		}
		k, err := s.Key()
		if err != nil {
			t.Fatal(err)
		}
		if j, taken := seen[k]; taken {
			t.Errorf("%v and %v have one key", shapes[j], shape)
		}
		seen[k] = i
	}
}

func TestFieldsDoNotRunTogether(t *testing.T) { // K1
	a, _ := (&Spec{Kind: "ab", Engine: "c"}).Key()
	b, _ := (&Spec{Kind: "a", Engine: "bc"}).Key()
	c, _ := (&Spec{Kind: "abc"}).Key()
	if a == b || a == c || b == c {
		t.Error("fields run into each other")
	}
}

func TestStrideOfSingleDimension(t *testing.T) { // K3
	of := func(dims, strides []int64) string {
		k, err := (&Spec{Kind: "reorder", Op: Operation{Tensors: []Tensor{{Dims: dims, Strides: strides}}}}).Key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	a := of([]int64{1, 16}, []int64{16, 1})
	if b := of([]int64{1, 16}, []int64{999, 1}); a != b {
		t.Error("the stride of a dimension of size 1 is in the key")
	}
	if a == of([]int64{1, 16}, []int64{16, 2}) {
		t.Error("another stride is not in the key")
	}
	if of([]int64{1}, nil) == of([]int64{1}, []int64{1}) {
		t.Error("a layout of the backend's choice is taken for a given one")
	}
	if of([]int64{1, 5}, []int64{7, 1}) == of([]int64{5, 1}, []int64{7, 1}) {
		t.Error("strides are taken for those of other dimensions")
	}
}

func TestRefused(t *testing.T) { // K6, R1
	s := Spec{Kind: "conv", Inputs: []Input{{Name: "main", Digest: []byte{1}}, {Name: "include"}}}
	prefix := []byte("before")
	enc, err := s.append(prefix, true)
	var e *fault.Error
	if !errors.As(err, &e) || !errors.Is(err, fault.ErrRefused) || e.Reason != fault.KeyRefused || e.Field != "include" {
		t.Errorf("%v, want a refusal that names the input", err)
	}
	if string(enc) != "before" {
		t.Errorf("%q was appended all the same", enc)
	}
	if _, err := (&Spec{Engine: "cpu"}).Key(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a key without a kind: %v", err)
	}
	for _, a := range []Attributes{
		{Scales: []Quant{{Arg: "src"}, {Arg: "dst"}, {Arg: "src", Mask: 1}}},
		{ZeroPoints: []Quant{{Arg: "src"}, {Arg: "src"}}},
		{Rounding: []Rounding{{Arg: "dst"}, {Arg: "dst"}}},
	} {
		if _, err := (&Spec{Kind: "matmul", Attr: a}).Key(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

// The order in which settings of arguments are given means nothing, whatever
// their number (K3).
func TestOrderOfSettings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		args := rapid.SliceOfNDistinct(rapid.StringN(0, 3, -1), 0, 8, rapid.ID[string]).Draw(t, "args")
		order := rapid.Permutation(args).Draw(t, "order")
		of := func(args []string) string {
			s := Spec{Kind: "matmul"}
			for _, a := range args {
				s.Attr.Scales = append(s.Attr.Scales, Quant{Arg: a, Mask: uint64(len(a))})
			}
			k, err := s.Key()
			if err != nil {
				t.Fatal(err)
			}
			return k
		}
		if of(args) != of(order) {
			t.Fatalf("%q and %q differ", args, order)
		}
	})
}

func TestLookupBorrows(t *testing.T) { // D4
	s := full()
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 0, 8<<10)
	hit := true
	if n := testing.AllocsPerRun(100, func() {
		enc, err := s.append(buf, true)
		hit = hit && err == nil && string(enc) == key
	}); n != 0 || !hit {
		t.Errorf("%v allocations, found: %v", n, hit)
	}
}

func TestFactors(t *testing.T) { // R2
	s := Spec{Kind: "matmul", Engine: "cpu", Op: Operation{Tensors: []Tensor{{Type: "f32", Dims: []int64{8, 16}, Strides: []int64{16, 1}}}}}
	s.Attr.PostOps = []PostOp{{Kind: "eltwise", Algorithm: "gelu_erf", Alpha: 0.5}}
	key, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	factors := Factors("any", key)
	for name, want := range map[string]string{"kind": "matmul", "op.tensors[0].dims": "[8,16]", "op.tensors[0].strides[1]": "1", "attr.post_ops[0].alpha": "0.5", "hints": "[]"} {
		if factors[name] != want {
			t.Errorf("%s is %q, want %q", name, factors[name], want)
		}
	}
	for _, whole := range []bool{true, false} { // also the form on disk
		enc, _ := full().append(nil, whole)
		factors := Factors("any", string(enc))
		for name := range factors {
			if strings.Contains(name, "#") {
				t.Errorf("field %s has no name", name)
			}
		}
		if len(factors) < 30 {
			t.Errorf("%d factors", len(factors))
		}
	}
	for _, none := range []string{"", "matmul m=1", key[:len(key)-1]} {
		if f := Factors("any", none); f != nil {
			t.Errorf("%q has factors %v", none, f)
		}
	}
}

// The encoding of a key is part of what is on disk: it must not change unseen.
func TestEncodingIsStable(t *testing.T) {
	s := Spec{Kind: "matmul", Engine: "cpu", Runtime: "seq", Op: Operation{Direction: "forward", Tensors: []Tensor{{Type: "f32", Dims: []int64{1, 16}, Strides: []int64{16, 1}}}}}
	k, err := s.Key()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(xxhash.Sum64String(k)); got != placed {
		t.Errorf("the encoding's checksum is %s, not %s: raise format if the encoding changed", got, placed)
	}
}

const placed = "15838366249846387389"

func BenchmarkAppend(b *testing.B) {
	s := full()
	buf := make([]byte, 0, 8<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.append(buf, true); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleSpec_Key() {
	s := Spec{Kind: "softmax", Engine: "cpu", Op: Operation{Tensors: []Tensor{{Type: "f32", Dims: []int64{4, 8}}}}}
	a, _ := s.Key()
	s.Op.Tensors[0].Dims = []int64{8, 4}
	b, _ := s.Key()
	s.Op.Tensors[0].Dims = []int64{4, 8}
	c, _ := s.Key()
	fmt.Println(a == b, a == c)
	// Output: false true
}

// K3, K4: a sum or an eltwise without a scale has the scale 1: both are one key, and another
// scale is another.
func TestScaleOfAPostOp(t *testing.T) {
	for _, kind := range []string{"sum", "eltwise", "binary"} {
		var keys [3]string
		for scale := range keys {
			s := Spec{Kind: "matmul", Attr: Attributes{PostOps: []PostOp{{Kind: kind, Scale: float64(scale)}}}}
			keys[scale], _ = s.Key()
		}
		if (keys[0] == keys[1]) != (kind != "binary") || keys[1] == keys[2] {
			t.Errorf("%s: %q", kind, keys)
		}
	}
}
