package trace_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/trace"
	"github.com/kiln-cache/kiln/fault"
)

func key(t *testing.T, text string) trace.Key {
	t.Helper()
	k, err := trace.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeyText(t *testing.T) {
	for _, text := range []string{"exact", "multiple:16", "pow2", "geometric:8", "pair:exact", "pair:geometric:8"} {
		if k := key(t, text); k.String() != text {
			t.Errorf("%s: %v", text, k)
		}
	}
	for _, text := range []string{"", "pair", "pair:", "pair:pair:exact", "len"} {
		if _, err := trace.ParseKey(text); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A stream has the compiled shape of every row, in the order of the trace.
func TestKeyStream(t *testing.T) {
	folder := t.TempDir()
	lengths, batches := filepath.Join(folder, "requests.csv"), filepath.Join(folder, "batches.csv.gz")
	for file, content := range map[string][]byte{
		lengths: []byte(requests),
		batches: packed(t, "start_ms,batch,max_len\n0,1,374\n5,8,16\n"),
	} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ key, file, want string }{
		{"multiple:16", lengths, "[[[384]] [[400]]]"},
		{"exact", lengths, "[[[374]] [[396]]]"},
		{"pair:multiple:16", batches, "[[[1,384]] [[8,16]]]"},
	} {
		s, err := key(t, c.key).Stream(c.file)
		if got := fmt.Sprint(s); err != nil || got != c.want {
			t.Errorf("%s of %s: %s, %v, want %s", c.key, filepath.Base(c.file), got, err, c.want)
		}
	}
	_, err := key(t, "pair:exact").Stream(lengths)
	if typed, ok := errors.AsType[*trace.Error](err); !ok || typed.File != lengths || typed.Line != 1 {
		t.Errorf("requests read as batches: %v", err)
	}
	if _, err := key(t, "exact").Stream(filepath.Join(folder, "none.csv")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
