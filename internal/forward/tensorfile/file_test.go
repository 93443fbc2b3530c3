package tensorfile_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

func pack(header string, body []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), body...)
}

func floats(v ...float32) []byte {
	var out []byte
	for _, f := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(f))
	}
	return out
}

// float32s are the numbers of a tensor.
func float32s(f *tensorfile.File, name string) (out []float32, err error) {
	err = f.Floats(name, func(values []float32) error { out = slices.Clone(values); return nil })
	return out, err
}

const twoTensors = `{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},` +
	`"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}   `

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	body := append(make([]byte, 8), floats(1, -2.5, 0, float32(math.Inf(1)))...)
	if err := os.WriteFile(path, pack(twoTensors, body), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := tensorfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Names(); !slices.Equal(got, []string{"b", "ids"}) {
		t.Errorf("Names() = %v", got)
	}
	if tensor, ok := f.Tensor("b"); !ok || tensor.Type != "F32" || !slices.Equal(tensor.Shape, []int{2, 2}) {
		t.Errorf("Tensor(b) = %v, %v", tensor, ok)
	}
	if got, err := float32s(f, "b"); err != nil || !slices.Equal(got, []float32{1, -2.5, 0, float32(math.Inf(1))}) {
		t.Errorf("Float32(b) = %v, %v", got, err)
	}
	if _, err := float32s(f, "ids"); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "only F32, F16 and BF16") {
		t.Errorf("an I64 tensor gives %v", err)
	}
	if _, err := float32s(f, "none"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("an absent tensor gives %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := float32s(f, "b"); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A tensor longer than the read buffer is read whole and in order.
func TestReadLong(t *testing.T) {
	want := make([]float32, 20001)
	for i := range want {
		want[i] = float32(i)
	}
	b := pack(`{"x":{"dtype":"F32","shape":[20001],"data_offsets":[0,80004]}}`, floats(want...))
	f, err := tensorfile.Read("w", b)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := float32s(f, "x"); err != nil || !slices.Equal(got, want) {
		t.Errorf("%d values, %v", len(got), err)
	}
}

// Pieces are the tensor's bytes, each once, in order, and never many at a time; an error
// ends them.
func TestPieces(t *testing.T) {
	const n = 1300001
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(i)
	}
	file := pack(fmt.Sprintf(`{"x":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}`, n, 4*n), floats(want...))
	path := filepath.Join(t.TempDir(), "w")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	mapped, err1 := tensorfile.Open(path)
	read, err2 := tensorfile.Read("w", file)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	defer mapped.Close()
	for name, f := range map[string]*tensorfile.File{"mapped": mapped, "read": read} {
		var got []float32
		err := f.FloatPieces("x", func(values []float32) error {
			if len(values) > 1<<19 {
				t.Errorf("%s: a piece of %d numbers", name, len(values))
			}
			got = append(got, values...)
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d numbers, %v", name, len(got), err)
		}
		calls := 0
		if err := f.Pieces("x", func([]byte) error { calls++; return fs.ErrExist }); !errors.Is(err, fs.ErrExist) || calls != 1 {
			t.Errorf("%s: %d calls, %v", name, calls, err)
		}
	}
}

func TestRejects(t *testing.T) {
	f32 := func(entries string) string { return "{" + entries + "}" }
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "too short"},
		{"short", []byte("abc"), "too short"},
		{"text", []byte("t_ms,len,out,session\n"), "not a safetensors file"},
		{"no object", pack("[]", nil), "does not begin with {"},
		{"zero header", pack("", nil), "a header of 0 bytes"},
		{"broken", pack(`{"a":`, nil), "broken JSON"},
		{"unclosed", pack(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}`, nil), "broken JSON"},
		{"trailing", pack(`{} x`, nil), "follow its JSON object"},
		{"unknown key", pack(f32(`"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}`), floats(1)), `tensor "a"`},
		{"no shape", pack(f32(`"a":{"dtype":"F32","data_offsets":[0,4]}`), floats(1)), "lacks"},
		{"type", pack(f32(`"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}`), floats(1)), `type "F31" is not known`},
		{"negative dim", pack(f32(`"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}`), floats(1)), "a dim is at least 0"},
		{"overflow", pack(f32(`"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}`), nil), "larger than any file"},
		{"size", pack(f32(`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}`), floats(1)), "do not hold the 8 bytes"},
		{"backwards", pack(f32(`"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}`), floats(1)), "do not hold"},
		{"cut off", pack(f32(`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`), floats(1)), "cut off"},
		{"overlap", pack(f32(`"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`), floats(1, 2)), "overlap"},
		{"gap", pack(f32(`"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}`), floats(1, 2)), "leave a gap"},
		{"rest", pack(f32(`"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), floats(1, 2)), "4 bytes follow the last tensor"},
		{"twice", pack(f32(`"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`), floats(1)), "twice"},
		{"metadata", pack(`{"__metadata__":{"a":1}}`, nil), "texts only"},
		{"huge header", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "not a safetensors file"},
	} {
		f, err := tensorfile.Read("w", c.file)
		var typed *tensorfile.Error
		if f != nil || !errors.As(err, &typed) || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an *Error with %q", c.name, err, c.want)
		}
	}
}

// R3: what cannot be opened is wrong input, and the text says what to do.
func TestOpenErrors(t *testing.T) {
	dir := t.TempDir()
	if _, err := tensorfile.Open(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a missing file gives %v", err)
	}
	if _, err := tensorfile.Open(dir); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a directory gives %v", err)
	}
	// What a clone without Git LFS has in the place of large files.
	pointer := filepath.Join(dir, "pointer")
	if err := os.WriteFile(pointer, []byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 90868376\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, open := range []func(string) (*tensorfile.File, error){tensorfile.Open, tensorfile.OpenONNX} {
		if _, err := open(pointer); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "git lfs pull") {
			t.Errorf("a pointer gives %v", err)
		}
	}
}

// No file makes the reader panic, and what it reads is never longer than the
// file.
func FuzzRead(f *testing.F) {
	f.Add(pack(twoTensors, make([]byte, 24)))
	f.Add(pack(twoTensors, make([]byte, 20)))
	f.Add(pack(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, floats(1)))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\x7f{"))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := tensorfile.Read("w", b)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		total := 0
		for _, name := range file.Names() {
			if tensor, _ := file.Tensor(name); tensor.Type != "F32" {
				continue
			}
			values, err := float32s(file, name)
			if err != nil {
				t.Fatal(err)
			}
			total += 4 * len(values)
		}
		if total > len(b) {
			t.Fatalf("%d bytes of values out of a file of %d", total, len(b))
		}
	})
}

// A File is read from many goroutines at once, and what it gives is the caller's
// to write to.
func TestHammer(t *testing.T) {
	want := make([]float32, 20_000) // longer than one read
	for i := range want {
		want[i] = float32(i)
	}
	body := floats(want...)
	header := `{"w":{"dtype":"F32","shape":[20000],"data_offsets":[0,80000]}}`
	f, err := tensorfile.Read("w", pack(header, body))
	if err != nil {
		t.Fatal(err)
	}
	var start, done sync.WaitGroup
	start.Add(1)
	for range 8 {
		done.Go(func() {
			start.Wait()
			for range 20 {
				got, err := float32s(f, "w")
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%d numbers, %v", len(got), err)
					return
				}
				clear(got)
				tensor, _ := f.Tensor("w")
				if !slices.Equal(tensor.Shape, []int{20_000}) {
					t.Error(tensor.Shape)
					return
				}
				tensor.Shape[0] = 0
			}
		})
	}
	start.Done()
	done.Wait()
}

// Numbers of half the width have their values exactly: all of them.
func TestHalfPrecision(t *testing.T) {
	var all []byte
	for bits := range 1 << 16 {
		all = binary.LittleEndian.AppendUint16(all, uint16(bits))
	}
	for kind, value := range map[string]func(bits uint16) float64{
		"F16": func(bits uint16) float64 {
			exponent, fraction := int(bits>>10&0x1f), float64(bits&0x3ff)/1024
			v := math.Ldexp(1+fraction, exponent-15)
			switch {
			case exponent == 0:
				v = math.Ldexp(fraction, -14)
			case exponent == 31 && fraction == 0:
				v = math.Inf(1)
			case exponent == 31:
				v = math.NaN()
			}
			return math.Copysign(v, 1-float64(bits>>15)*2)
		},
		"BF16": func(bits uint16) float64 { return float64(math.Float32frombits(uint32(bits) << 16)) },
	} {
		header := `{"x":{"dtype":"` + kind + `","shape":[256,256],"data_offsets":[0,131072]}}`
		f, err := tensorfile.Read("w", pack(header, all))
		if err != nil {
			t.Fatal(err)
		}
		got, err := float32s(f, "x")
		if err != nil || len(got) != 1<<16 {
			t.Fatalf("%s: %d numbers, %v", kind, len(got), err)
		}
		for bits, v := range got {
			if want := value(uint16(bits)); math.Float64bits(float64(v)) != math.Float64bits(want) && !(v != v && want != want) {
				t.Fatalf("%s %#04x: %v, want %v", kind, bits, v, want)
			}
		}
	}
}

// A header may have any length, so that numbers lie at any address.
func TestUnaligned(t *testing.T) {
	want := []float32{1, -2, 3}
	for spaces := range 5 {
		header := `{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}` + strings.Repeat(" ", spaces)
		f, err := tensorfile.Read("w", pack(header, floats(want...)))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := float32s(f, "x"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%d spaces: %v, %v", spaces, got, err)
		}
	}
}

// A file that is cut while it is open is an error of the read, on a system that maps it
// too; and what went back to the system is read again.
func TestCutWhileOpen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	header := `{"x":{"dtype":"F32","shape":[65536],"data_offsets":[0,262144]}}`
	if err := os.WriteFile(path, pack(header, make([]byte, 1<<18)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := tensorfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 2 {
		if got, err := float32s(f, "x"); err != nil || len(got) != 1<<16 {
			t.Fatalf("%d numbers, %v", len(got), err)
		}
	}
	if err := os.Truncate(path, 4096); err != nil {
		t.Skip(err)
	}
	if _, err := float32s(f, "x"); !errors.Is(err, fault.ErrInvalid) && runtime.GOOS == "linux" {
		t.Errorf("%v, want ErrInvalid", err)
	}
}

// E8: numbers of a file that somebody wrote into are none of those that were opened; a
// file that another one replaced keeps its own.
func TestChangedWhileOpen(t *testing.T) {
	content := pack(`{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}`, floats(1, 2, 3))
	other := pack(`{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}`, floats(4, 5, 6))
	for name, c := range map[string]struct {
		change func(path string) error
		stays  bool
	}{
		"written": {func(path string) error {
			return errors.Join(os.WriteFile(path, other, 0o600), os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)))
		}, false},
		"longer": {func(path string) error { return os.Truncate(path, int64(len(content)+1)) }, false},
		"replaced": {func(path string) error {
			return errors.Join(os.WriteFile(path+".new", other, 0o600), os.Rename(path+".new", path))
		}, true},
		"removed": {os.Remove, true},
	} {
		path := filepath.Join(t.TempDir(), "w.safetensors")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := tensorfile.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(path); err != nil {
			t.Skip(err)
		}
		got, err := float32s(f, "x")
		if same := err == nil && slices.Equal(got, []float32{1, 2, 3}); !same && (c.stays || !errors.Is(err, fault.ErrInvalid)) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What panics in the hands of the reader is no fault of the file.
func TestPanicOfTheReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.safetensors")
	if err := os.WriteFile(path, pack(`{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, floats(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := tensorfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	defer func() {
		if r := recover(); r != "mine" {
			t.Errorf("panicked with %v", r)
		}
	}()
	_ = f.Floats("x", func([]float32) error { panic("mine") })
}
