package trace_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/trace"
	"github.com/kiln-cache/kiln/fault"
)

const requests = "t_ms,len,out,session\n0,374,44,\n4315,396,,7\n"

func packed(t testing.TB, text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A table is read plain or compressed, whatever the file is called.
func TestRequests(t *testing.T) {
	want := []trace.Request{
		{Millis: 0, Len: 374, Out: 44, Session: trace.Unknown},
		{Millis: 4315, Len: 396, Out: trace.Unknown, Session: 7},
	}
	for name, content := range map[string][]byte{"plain.csv": []byte(requests), "packed.csv.gz": packed(t, requests), "packed.csv": packed(t, requests)} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := trace.Requests(file)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	got, err := trace.ReadRequests("lengths", strings.NewReader("doc,len\r\nx,5\r\n\r\ny,6\r\n"))
	if err != nil || len(got) != 2 || got[1] != (trace.Request{Len: 6, Out: trace.Unknown, Session: trace.Unknown}) {
		t.Errorf("lengths alone: %v, %v", got, err)
	}
}

func TestBatches(t *testing.T) {
	got, err := trace.ReadBatches("b", strings.NewReader("max_len,start_ms,batch\n374,0,1\n396,4315,8\n"))
	if want := []trace.Batch{{0, 1, 374}, {4315, 8, 396}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

// What spreadsheets write before the header is none of it; a mark anywhere else
// is what stands there, and not what a column or a number is.
func TestByteOrderMark(t *testing.T) {
	const mark = "\ufeff"
	want, err := trace.ReadRequests("plain", strings.NewReader(requests))
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.Replace(requests, "t_ms", `"t_ms"`, 1)
	for name, text := range map[string]string{"plain": mark + requests, "packed": string(packed(t, mark+requests)), "quoted": mark + quoted} {
		got, err := trace.ReadRequests(name, strings.NewReader(text))
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for text, line := range map[string]int{
		mark:                               0,
		mark + mark + "len\n1\n":           1,
		"t_ms," + mark + "len\n1,2\n":      1,
		"\n" + mark + "len\n1\n":           1,
		mark + string(packed(t, requests)): 1,
		"\xef\xbblen\n1\n":                 1, // two of its three bytes
		"len\n" + mark + "1\n":             2,
		mark + "len\nx\n":                  2,
		mark + "len\n1\n" + mark + "len\n": 3,
	} {
		_, err := trace.ReadRequests("some.csv", strings.NewReader(text))
		if typed, ok := errors.AsType[*trace.Error](err); !ok || !errors.Is(err, fault.ErrInvalid) || typed.Line != line {
			t.Errorf("%.40q: %v, want a typed error of line %d", text, err, line)
		}
	}
}

// endless is a device such as /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// What cannot be read names the file and the line.
func TestErrors(t *testing.T) {
	for text, line := range map[string]int{
		"":                                0,
		"t_ms,out\n1,2\n":                 1,
		"len,len\n1,2\n":                  1,
		"len\n1\n-2\n":                    3,
		"len\n1\n2.5\n":                   3,
		"len\n1\n\n\nx\n":                 5,
		"len\n99999999999999999999\n":     2,
		"len\n2147483648\n":               2,
		"t_ms,len\n1,2\n3\n":              3,
		"t_ms,len\n,2\n":                  2,
		"len\n\"1\n":                      2,
		"len,out\n1,x\n":                  2,
		"\x1f\x8b\x08junk":                0,
		string(packed(t, requests)[:30]):  0,
		string(packed(t, "len\n1\nx\n")):  3,
		"len\n1\n" + "\x00\xff\n":         3,
		"t_ms,len\n1,2\n3,4,5\n":          3,
		"t_ms,len,out,session\n1,2,3,-\n": 2,
	} {
		_, err := trace.ReadRequests("some.csv", strings.NewReader(text))
		typed, ok := errors.AsType[*trace.Error](err)
		if !ok || !errors.Is(err, fault.ErrInvalid) || typed.File != "some.csv" || typed.Line != line {
			t.Errorf("%.40q: %v, want a typed error of line %d", text, err, line)
			continue
		}
		if !strings.Contains(err.Error(), "some.csv") {
			t.Errorf("%.40q: %v does not name the file", text, err)
		}
	}
	for start, line := range map[string]int{"": 1, "len\n1\n": 3, "len\n1\n2\n\"": 4} { // rows that never end
		_, err := trace.ReadRequests("some.csv", io.MultiReader(strings.NewReader(start), endless{}))
		if typed, ok := errors.AsType[*trace.Error](err); !ok || !errors.Is(err, fault.ErrInvalid) || typed.Line != line {
			t.Errorf("%q and no end: %v, want a typed error of line %d", start, err, line)
		}
	}
	flipped := packed(t, requests)
	flipped[len(flipped)-6] ^= 1 // of the checksum
	if _, err := trace.ReadRequests("f", bytes.NewReader(flipped)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("damaged: %v", err)
	}
	if _, err := trace.Batches(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no file: %v", err)
	}
	if _, err := trace.Requests(t.TempDir()); err == nil || errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a folder: %v", err)
	}
}

// Any bytes are rows within the limits or a typed error.
func FuzzRead(f *testing.F) {
	f.Add([]byte(requests))
	f.Add(packed(f, requests))
	f.Add([]byte("\ufeff" + requests))
	f.Add([]byte("batch,max_len\n1,2\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := trace.ReadRequests("fuzz", bytes.NewReader(b))
		if err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Len < 0 || r.Millis < 0 || r.Out < trace.Unknown || r.Session < trace.Unknown {
				t.Fatalf("%+v", r)
			}
		}
		if _, err := trace.ReadBatches("fuzz", bytes.NewReader(b)); err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Fatal(err)
		}
	})
}
