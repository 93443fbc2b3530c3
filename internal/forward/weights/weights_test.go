package weights_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
	"github.com/kiln-cache/kiln/internal/forward/weights"
)

var bg = context.Background()

func tiny(t testing.TB) *oplist.Model {
	t.Helper()
	list, _ := data.Model("bert_tiny_l2_h128")
	m, err := oplist.Parse("tiny", list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGenerate(t *testing.T) {
	for _, c := range []struct {
		role            oplist.Role
		shape           []int
		mean, deviation float64
	}{
		{oplist.Kernel, []int{256, 400}, 0, 1.0 / 16},
		{oplist.Gamma, []int{100000}, 1, 0.1},
		{oplist.Beta, []int{100000}, 0, 0.1},
		{oplist.Bias, []int{100000}, 0, 0.1},
		{oplist.Table, []int{1000, 100}, 0, 0.5},
		{oplist.Position, []int{1000, 100}, 0, 0.5},
	} {
		v := weights.Generate(7, oplist.Weight{Name: "w", Shape: c.shape, Role: c.role})
		var sum, squares, fourth float64
		for _, x := range v {
			d := (float64(x) - c.mean) / c.deviation
			sum, squares, fourth = sum+d, squares+d*d, fourth+d*d*d*d
		}
		n := float64(len(v))
		// Standard errors are 1/sqrt(n) = 0.003 for n = 100,000: five of them. The
		// fourth moment of a sum of four uniform numbers is 2.7; one uniform has 1.8.
		if math.Abs(sum/n) > 0.016 || math.Abs(squares/n-1) > 0.016 || math.Abs(fourth/n-2.7) > 0.1 {
			t.Errorf("%s: mean %.4f, variance %.4f, fourth moment %.3f of the normalised values", c.role, sum/n, squares/n, fourth/n)
		}
	}
}

// The first values are fixed: another machine, or a change by accident, would
// give other outputs for a seed.
func TestGenerateIsFixed(t *testing.T) {
	w := oplist.Weight{Name: "a", Shape: []int{4}, Role: oplist.Gamma}
	got := weights.Generate(1, w)
	var bits []uint32
	for _, v := range got {
		bits = append(bits, math.Float32bits(v))
	}
	if want := []uint32{0x3f77c049, 0x3f645cbf, 0x3f7aa833, 0x3f730cdb}; !slices.Equal(bits, want) {
		t.Errorf("values %x, want %x", bits, want)
	}
	longer := w
	longer.Shape = []int{9}
	if prefix := weights.Generate(1, longer)[:4]; !slices.Equal(prefix, got) {
		t.Errorf("a value depends on how many follow: %v, %v", prefix, got)
	}
	other := w
	other.Name = "b"
	if slices.Equal(weights.Generate(1, other), got) || slices.Equal(weights.Generate(2, w), got) {
		t.Error("another name or seed gives the same values")
	}
}

func TestTokens(t *testing.T) {
	const vocab = 30522
	seen := map[int32]bool{}
	for place := range 200 {
		ids := weights.Tokens(3, place, 50, vocab)
		if ids[0] != 101 || ids[49] != 102 {
			t.Fatalf("place %d begins with %d and ends with %d", place, ids[0], ids[49])
		}
		for _, id := range ids[1:49] {
			if id < 1000 || id >= vocab {
				t.Fatalf("id %d is no word of the vocabulary", id)
			}
			seen[id] = true
		}
	}
	if len(seen) < 7000 { // 9,600 draws out of 29,522 give about 8,200 different ones
		t.Errorf("only %d different ids", len(seen))
	}
	if !slices.Equal(weights.Tokens(3, 5, 20, vocab), weights.Tokens(3, 5, 20, vocab)) {
		t.Error("the same place gives other ids")
	}
	if slices.Equal(weights.Tokens(3, 5, 20, vocab), weights.Tokens(3, 6, 20, vocab)) ||
		slices.Equal(weights.Tokens(3, 5, 20, vocab), weights.Tokens(4, 5, 20, vocab)) {
		t.Error("another place or seed gives the same ids")
	}
	if got := weights.Tokens(3, 0, 1, vocab); !slices.Equal(got, []int32{101}) {
		t.Errorf("one token is %v, want [CLS]", got)
	}
	if got := weights.Tokens(3, 0, 2, vocab); !slices.Equal(got, []int32{101, 102}) {
		t.Errorf("two tokens are %v", got)
	}
	if got := weights.Tokens(3, 0, 0, vocab); got != nil {
		t.Errorf("no token gives %v", got)
	}
	for _, id := range weights.Tokens(3, 0, 500, 10) {
		if id < 0 || id > 9 {
			t.Fatalf("id %d with a vocabulary of 10", id)
		}
	}
}

// Several goroutines may ask for tensors of one set.
func TestSetConcurrent(t *testing.T) {
	m := tiny(t)
	set, err := weights.Open(m, 1)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for _, w := range m.Weights[4:9] {
		for range 2 {
			wg.Go(func() {
				got, err := set.Tensor(w.Name)
				if err != nil || !slices.Equal(got, weights.Generate(1, w)) {
					t.Errorf("%s: other values, %v", w.Name, err)
				}
			})
		}
	}
	wg.Wait()
	if _, err := set.Tensor("none"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown tensor gives %v", err)
	}
	if _, err := set.Identity(bg, "none"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an unknown tensor's identity gives %v", err)
	}
}

func TestIdentity(t *testing.T) {
	m := tiny(t)
	one, _ := weights.Open(m, 1)
	two, _ := weights.Open(m, 2)
	seen := map[string]string{}
	for _, w := range m.Weights {
		for _, set := range []*weights.Set{one, two} {
			id, err := set.Identity(bg, w.Name)
			if err != nil || seen[id] != "" {
				t.Errorf("%s: identity %q is that of %s, %v", w.Name, id, seen[id], err)
			}
			seen[id] = w.Name
		}
	}
}

// writeModel puts an op list that names a weight file into a folder, and a file
// with some generated weights and zeros for the rest, but with change applied to its entries.
func writeModel(t *testing.T, change func(map[string]any)) *oplist.Model {
	t.Helper()
	dir := t.TempDir()
	list, _ := data.Model("bert_tiny_l2_h128")
	text := strings.Replace(string(list), `"dtype"`, `"weights": "w.safetensors", "dtype"`, 1)
	path := filepath.Join(dir, "m.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := oplist.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	header, body := map[string]any{}, []byte{}
	for i, w := range m.Weights {
		begin := len(body)
		if i == 0 || i >= 8 { // large, or not looked at
			body = append(body, make([]byte, 4*w.Elements())...)
		} else {
			for _, v := range weights.Generate(5, w) {
				body = binary.LittleEndian.AppendUint32(body, math.Float32bits(v))
			}
		}
		header[w.Name] = map[string]any{"dtype": "F32", "shape": w.Shape, "data_offsets": []int{begin, len(body)}}
	}
	change(header)
	h, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), append(h, body...)...)
	if err := os.WriteFile(m.WeightsPath(), file, 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSetFromFile(t *testing.T) {
	m := writeModel(t, func(h map[string]any) { h["__metadata__"] = map[string]string{} })
	set, err := weights.Open(m, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := set.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, w := range m.Weights[1:8] {
		got, err := set.Tensor(w.Name)
		if err != nil || !slices.Equal(got, weights.Generate(5, w)) {
			t.Errorf("%s: not the file's values, %v", w.Name, err)
		}
	}
	a, errA := set.Identity(bg, m.Weights[5].Name)
	b, errB := set.Identity(bg, m.Weights[7].Name)
	if errA != nil || errB != nil || a == b {
		t.Errorf("identities %q, %v and %q, %v", a, errA, b, errB)
	}
}

// K5: tensors of a file that was written long ago have identities that little is read
// for; of one written just now, those of their content. They are read as long as the
// context lasts.
func TestIdentityInFile(t *testing.T) {
	m := writeModel(t, func(map[string]any) {})
	identities := func(now time.Time) (all []string) {
		t.Helper()
		file, err := tensorfile.OpenAt(m.WeightsPath(), now)
		if err != nil {
			t.Fatal(err)
		}
		set, err := weights.Of(m, "w", file, false)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		for _, w := range m.Weights {
			ended, end := context.WithCancel(bg)
			end()
			if _, err := set.Identity(ended, w.Name); !errors.Is(err, context.Canceled) {
				t.Errorf("a context that has ended: %v", err)
			}
			id, err := set.Identity(bg, w.Name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, id)
		}
		return all
	}
	later := identities(time.Now().Add(time.Hour))
	if again := identities(time.Now().Add(time.Hour)); !slices.Equal(again, later) {
		t.Errorf("identities %q and then %q", later, again)
	}
	for i, id := range later {
		if slices.Contains(later[:i], id) {
			t.Errorf("two tensors have the identity %q", id)
		}
		if runtime.GOOS == "linux" && strings.Contains(id, "sha256:") {
			t.Errorf("%q: read, though the file has a stamp", id)
		}
	}
	for _, id := range identities(time.Now().Add(-time.Hour)) {
		if !strings.Contains(id, "sha256:") {
			t.Errorf("identity %q of a file that was written just now", id)
		}
	}
}

// R3: a file that has some weights but not all is wrong input; numbers of a type that nothing
// here reads are not supported.
func TestIncompleteFile(t *testing.T) {
	const name = "bert/pooler/dense/bias"
	for what, c := range map[string]struct {
		change func(map[string]any)
		want   string
		is     error
	}{
		"missing": {func(h map[string]any) { h["other"] = h[name]; delete(h, name) }, "is missing, 1 of 39 are", fault.ErrInvalid},
		"shape":   {func(h map[string]any) { h[name].(map[string]any)["shape"] = []int{2, 64} }, "is F32 [2 64], the model wants [128]", fault.ErrInvalid},
		"type":    {func(h map[string]any) { h[name].(map[string]any)["dtype"] = "I32" }, "is I32, want F32, F16, BF16", fault.ErrUnsupported},
	} {
		_, err := weights.Open(writeModel(t, c.change), 1)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", what, err)
		}
	}
	m := writeModel(t, func(map[string]any) {})
	if err := os.Remove(m.WeightsPath()); err != nil {
		t.Fatal(err)
	}
	if _, err := weights.Open(m, 1); !errors.Is(err, fault.ErrInvalid) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func BenchmarkGenerate(b *testing.B) {
	w := oplist.Weight{Name: "w", Shape: []int{1024, 1024}, Role: oplist.Kernel}
	b.SetBytes(int64(4 * w.Elements()))
	for b.Loop() {
		weights.Generate(1, w)
	}
}

// A file may have the kernels transposed, and numbers of half the width: the set gives
// what the model multiplies with. What lies otherwise has another identity.
func TestTransposedFile(t *testing.T) {
	m := tiny(t)
	first, identities := "", map[string]bool{}
	for _, w := range m.Weights {
		if w.Role == oplist.Kernel && w.Shape[0] != w.Shape[1] {
			first = w.Name
			break
		}
	}
	for _, half := range []bool{false, true} {
		header, body := map[string]any{}, []byte{}
		for _, w := range m.Weights {
			shape, begin := slices.Clone(w.Shape), len(body)
			if w.Role == oplist.Kernel {
				slices.Reverse(shape)
			}
			kind := "F32"
			for i := range w.Elements() {
				value := float32(i % 251)
				if half && w.Name == first {
					kind = "BF16"
					body = binary.LittleEndian.AppendUint16(body, uint16(math.Float32bits(value)>>16))
				} else {
					body = binary.LittleEndian.AppendUint32(body, math.Float32bits(value))
				}
			}
			header[w.Name] = map[string]any{"dtype": kind, "shape": shape, "data_offsets": []int{begin, len(body)}}
		}
		text, err := json.Marshal(header)
		if err != nil {
			t.Fatal(err)
		}
		open := func() *tensorfile.File {
			file, err := tensorfile.Read("w", append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), append(text, body...)...))
			if err != nil {
				t.Fatal(err)
			}
			return file
		}
		if _, err := weights.Of(m, "w", open(), false); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("read as it lies: %v", err)
		}
		set, err := weights.Of(m, "w", open(), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range m.Weights {
			got, err := set.Tensor(w.Name)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range got {
				at := i
				if w.Role == oplist.Kernel {
					at = i%w.Shape[1]*w.Shape[0] + i/w.Shape[1]
				}
				if v != float32(at%251) {
					t.Fatalf("%s: element %d is %v, want %v", w.Name, i, v, float32(at%251))
				}
			}
		}
		identity, err := set.Identity(bg, first)
		if again, _ := set.Identity(bg, first); err != nil || identity != again || identities[identity] {
			t.Errorf("identity %q, %q, %v", identity, again, err)
		}
		identities[identity] = true
		if err := set.Close(); err != nil {
			t.Error(err)
		}
		if _, err := set.Tensor(first); !errors.Is(err, fault.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}
