package tensorfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// text appends a field that has a length, whole one that is a number.
func text(m []byte, number protowire.Number, v string) []byte {
	return protowire.AppendString(protowire.AppendTag(m, number, protowire.BytesType), v)
}

func whole(m []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(m, number, protowire.VarintType), v)
}

// onnxOf is a model with a graph of these fields.
func onnxOf(graph ...[]byte) []byte {
	return text(text(nil, 7, string(slices.Concat(graph...))), 8, "\x10\x0e")
}

func initialiser(t []byte) []byte { return text(nil, 5, string(t)) }

// plain is a tensor x of these dims with these numbers.
func plain(dims []uint64, numbers ...float32) (m []byte) {
	for _, d := range dims {
		m = whole(m, 1, d)
	}
	return text(text(whole(m, 2, 1), 9, string(floats(numbers...))), 8, "x")
}

func TestRejectsONNX(t *testing.T) {
	cut := onnxOf(initialiser(plain([]uint64{3}, 1, 2, 3)))
	many := plain(nil)
	for range 17 {
		many = whole(many, 1, 1)
	}
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "0 graphs"},
		{"safetensors", pack(twoTensors, make([]byte, 24)), "not an ONNX model"},
		{"no versions", text(nil, 7, ""), "0 versions"},
		{"cut", cut[:len(cut)-6], "cut off"},
		{"no name", onnxOf(initialiser(nil)), "no name"},
		{"twice", onnxOf(initialiser(plain([]uint64{1}, 1)), initialiser(plain([]uint64{1}, 1))), "twice"},
		{"long name", onnxOf(initialiser(text(nil, 8, strings.Repeat("x", 2000)))), "a name of 2000 bytes"},
		{"few numbers", onnxOf(initialiser(plain([]uint64{3}, 1, 2))), "has 8 bytes, though F32 [3] has 12"},
		{"absurd", onnxOf(initialiser(plain([]uint64{1 << 40, 1 << 40}, 1))), "larger than any file"},
		{"negative", onnxOf(initialiser(plain([]uint64{1<<64 - 1}, 1))), "a dim is at least 0"},
		{"dims", onnxOf(initialiser(many)), "more than 16 dims"},
		{"packed dims", onnxOf(initialiser(text(plain(nil, 1), 1, strings.Repeat("\x01", 30)))), "too many"},
		{"two forms", onnxOf(initialiser(text(plain([]uint64{1}, 1), 4, "abcd"))), "2 pieces"},
		{"elsewhere", onnxOf(initialiser(whole(text(plain([]uint64{1}, 1), 13, string(text(text(nil, 1, "location"), 2, "w"))), 14, 1))), "not in memory"},
		{"out of the folder", onnxOf(initialiser(whole(text(plain([]uint64{1}, 1), 13, string(text(text(nil, 1, "location"), 2, "a/../../w"))), 14, 1))), "a/../../w"},
		{"no place", onnxOf(initialiser(whole(plain([]uint64{1}, 1), 14, 1))), "not in the model's folder"},
	} {
		f, err := tensorfile.ReadONNX("w", c.file)
		var typed *tensorfile.Error
		if f != nil || !errors.As(err, &typed) || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an *Error with %q", c.name, err, c.want)
		}
	}
}

// K5: the stamp of a model says the state of the files with its numbers, too.
func TestStampOfONNX(t *testing.T) {
	dir := t.TempDir()
	path, numbers := filepath.Join(dir, "model.onnx"), filepath.Join(dir, "w")
	away := whole(text(plain([]uint64{1}), 13, string(text(text(nil, 1, "location"), 2, "w"))), 14, 1)
	if err := errors.Join(os.WriteFile(path, onnxOf(initialiser(away)), 0o600), os.WriteFile(numbers, floats(1), 0o600)); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	read := func(want float32) string {
		t.Helper()
		f, err := tensorfile.OpenONNXAt(path, later)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got, err := float32s(f, "x"); err != nil || !slices.Equal(got, []float32{want}) {
			t.Errorf("%v, %v, want %v", got, err, want)
		}
		return f.Stamp()
	}
	first := read(1)
	if err := errors.Join(os.WriteFile(numbers+".new", floats(2), 0o600), os.Rename(numbers+".new", numbers)); err != nil {
		t.Fatal(err)
	}
	if second := read(2); first != "" && first == second {
		t.Errorf("stamp %q, though the numbers are others", second)
	}
}

// A kernel is known by its bias, and by nothing else: one that no product has may be
// stored either way, and one bias of two products says nothing.
func TestKernels(t *testing.T) {
	square := func(name string) []byte {
		t := whole(whole(whole(nil, 1, 2), 1, 2), 2, 1)
		return initialiser(text(text(t, 9, string(floats(1, 2, 3, 4))), 8, name))
	}
	bias := func(name string) []byte {
		return initialiser(text(text(whole(whole(nil, 1, 2), 2, 1), 9, string(floats(5, 6))), 8, name))
	}
	node := func(op, output string, inputs ...string) (m []byte) {
		for _, in := range inputs {
			m = text(m, 1, in)
		}
		return text(nil, 1, string(text(text(m, 2, output), 4, op)))
	}
	for _, c := range []struct {
		name   string
		graph  [][]byte
		kind   string
		turned bool
	}{
		{"product", [][]byte{square("1"), node("MatMul", "p", "in", "1"), node("Add", "s", "p", "a.bias")}, "F32", true},
		{"bias first", [][]byte{square("1"), node("MatMul", "p", "in", "1"), node("Add", "s", "a.bias", "p")}, "F32", true},
		{"named, as it is used", [][]byte{square("a.weight"), node("MatMul", "p", "in", "a.weight"), node("Add", "s", "p", "a.bias")}, "F32", true},
		{"named, transposed", [][]byte{square("a.weight"), node("Transpose", "t", "a.weight"), node("MatMul", "p", "in", "t"), node("Add", "s", "p", "a.bias")}, "F32", false},
		{"transposed twice", [][]byte{square("1"), node("Transpose", "t", "1"), node("Transpose", "u", "t"), node("MatMul", "p", "in", "u"), node("Add", "s", "p", "a.bias")}, "F32", true},
		{"named alone", [][]byte{square("a.weight")}, "F32 (of no product to which its bias is added)", false},
		{"on the left", [][]byte{square("a.weight"), node("MatMul", "p", "a.weight", "in"), node("Add", "s", "p", "a.bias")}, "F32 (of no product to which its bias is added)", false},
		{"two products", [][]byte{square("1"), square("2"), node("MatMul", "p", "in", "1"), node("MatMul", "q", "in", "2"), node("Add", "s", "p", "a.bias"), node("Add", "r", "q", "a.bias")}, "", false},
	} {
		f, err := tensorfile.ReadONNX("w", onnxOf(append(c.graph, bias("a.bias"))...))
		if c.kind == "" {
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `"a.bias"`) {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if k, ok := f.Tensor("a.weight"); !ok || k.Type != c.kind || k.Turned != c.turned {
			t.Errorf("%s: %+v", c.name, k)
		}
	}
}

// No model makes the reader panic, and no tensor is longer than the file.
func FuzzReadONNX(f *testing.F) {
	f.Add(onnxOf(initialiser(plain([]uint64{3}, 1, 2, 3))))
	f.Add(onnxOf(initialiser(plain([]uint64{2, 2}, 1, 2, 3, 4)), text(nil, 1, string(text(text(text(nil, 1, "in"), 1, "x"), 4, "MatMul")))))
	f.Add([]byte("\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"))
	f.Add([]byte("\x3b\x3b\x3b"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := tensorfile.ReadONNX("w", b)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) || len(err.Error()) > 3000 {
				t.Fatal(err)
			}
			return
		}
		for _, name := range file.Names() {
			values, err := float32s(file, name)
			if err != nil && !errors.Is(err, fault.ErrInvalid) || 2*len(values) > len(b) {
				t.Fatalf("%d numbers out of %d bytes, %v", len(values), len(b), err)
			}
		}
	})
}
