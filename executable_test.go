package kiln

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// P17: where the digest of the running executable cannot be had, the log says once which
// file could not be read and why, and so does the error where the store is required.
func TestExecutableThatCannotBeRead(t *testing.T) {
	was := executable
	t.Cleanup(func() { executable = was })
	executable = func() (gpuexec.Identity, error) {
		_, err := digestOf(func() (io.ReadCloser, error) {
			return nil, &fs.PathError{Op: "open", Path: "/opt/program", Err: fs.ErrPermission}
		})
		return gpuexec.Identity{Library: ofExecutable}, err
	}
	for _, required := range []bool{false, true} {
		var log strings.Builder
		var told Event
		r, err := Open(Config{StoreDir: t.TempDir() + "/store", StoreRequired: required,
			Logger: slog.New(slog.NewTextHandler(&log, nil)), Listen: func(e Event) { told = e }})
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.Session(SessionConfig{})
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.Group(t.Context(), []int64{1})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"a", "b"} {
			_, err = Get(t.Context(), g, key, Recipe[int]{Key: key, Backend: "own",
				Make: func(context.Context) (Made[int], error) { return Made[int]{}, nil },
				Load: func(context.Context, []byte) (Made[int], error) { return Made[int]{}, nil }})
			if told.Reason != fault.Disabled || told.Field != "build" {
				t.Errorf("told: %s (%s)", told.Reason, told.Field)
			}
			if refused := errors.Is(err, ErrRefused); refused != required || errors.Is(err, fs.ErrPermission) != required {
				t.Errorf("store required %v: %v", required, err)
			}
			if required && !strings.Contains(err.Error(), "open /opt/program: permission denied") {
				t.Errorf("the error names no file: %v", err)
			}
		}
		g.Close()
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "open /opt/program: permission denied"); n != 1 {
			t.Errorf("the log tells %d times what could not be read:\n%s", n, log.String())
		}
	}
}

// P17, P12: two executables that differ anywhere have two identities.
func TestDigestCoversTheWholeExecutable(t *testing.T) {
	digest := func(content []byte) string {
		d, err := digestOf(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	content := make([]byte, 1<<20)
	one := digest(content)
	content[len(content)-1]++
	if last := digest(content); last == one {
		t.Error("the last byte is not covered")
	}
	if longer := digest(append(content, 0)); longer == digest(content) {
		t.Error("the length is not covered")
	}
}
