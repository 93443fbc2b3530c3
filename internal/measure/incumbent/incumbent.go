// Package incumbent is oneDNN's own cache of primitives, as its users have it: in a process
// of its own, which measures itself in C (loop/hit.c), compiled by the C compiler of the machine.
// It is built for measurements only; nothing else of this module needs a C compiler.
package incumbent

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

//go:embed loop/hit.c
var source []byte

// The modes of a lookup.
const (
	Kept  = "kept"   // descriptor and primitive and their destroys, the rest kept
	AllIn = "all-in" // memory descriptors, attributes, descriptor, primitive, all destroys
)

// Of the matmul that is looked up: M x K by K x N with a bias and a gelu, M from 1 to Problems.
const Problems, K, N = 128, 384, 1536

// Process is oneDNN in a process of its own. Owned by one goroutine.
type Process struct {
	Version string

	folder  string
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// ErrAbsent: what the comparison with oneDNN needs is not on this machine.
var ErrAbsent = fmt.Errorf("oneDNN's own cache: %w", fault.ErrUnavailable)

// Open compiles the loop with the C compiler of the machine and loads the
// library in it. ErrAbsent says what is missing.
func Open(ctx context.Context, library string) (*Process, error) {
	if about, err := os.Stat(library); err != nil || !about.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is no file; `make fetch-onednn` brings it", ErrAbsent, library)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, fmt.Errorf("%w: no C compiler named cc; install gcc", ErrAbsent)
	}
	folder, err := os.MkdirTemp("", "kiln-bench-")
	if err != nil {
		return nil, err
	}
	n := &Process{folder: folder}
	if err := n.start(ctx, cc, library); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

func (n *Process) start(ctx context.Context, cc, library string) error {
	text, program := filepath.Join(n.folder, "hit.c"), filepath.Join(n.folder, "hit")
	if err := os.WriteFile(text, source, 0o600); err != nil {
		return err
	}
	if said, err := exec.CommandContext(ctx, cc, "-O2", "-pthread", "-o", program, text, "-ldl").CombinedOutput(); err != nil {
		return fmt.Errorf("incumbent: %s: %w: %s", cc, err, said)
	}
	path, err := filepath.Abs(library) // a bare name would be looked for elsewhere
	if err != nil {
		return err
	}
	process := exec.CommandContext(ctx, program, path)
	process.Stderr = os.Stderr
	if n.in, err = process.StdinPipe(); err != nil {
		return err
	}
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	n.process, n.out = process, bufio.NewReader(out)
	line, err := n.line()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAbsent, err)
	}
	if _, err := fmt.Sscanf(line, "ready %s", &n.Version); err != nil {
		return fmt.Errorf("incumbent: oneDNN said %q: %w", line, err)
	}
	return nil
}

// line reads an answer; an error of the program becomes one of ours.
func (n *Process) line() (string, error) {
	line, err := n.out.ReadString('\n')
	if said, is := strings.CutPrefix(line, "error: "); is {
		return "", fmt.Errorf("oneDNN: %s", strings.TrimSpace(said))
	}
	if err != nil {
		return "", fmt.Errorf("oneDNN: its process ended: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// Sample is what one slot gave.
type Sample struct {
	NS, CPU  float64 // of a lookup: wall time over all threads' lookups, and processor time
	P50, P99 float64 // of a lookup, over batches of 64; beside a writer only, else 0
	Writes   int64
}

// Slot has threads look up for about the length given, 1 ms at least; with writers, beside
// one that creates what the full cache does not hold.
func (n *Process) Slot(mode string, threads int, length time.Duration, writers bool) (Sample, error) {
	beside := 0
	if writers {
		beside = 1
	}
	if _, err := fmt.Fprintln(n.in, mode, threads, beside, max(1, length.Milliseconds())); err != nil {
		return Sample{}, fmt.Errorf("oneDNN: %w", err)
	}
	line, err := n.line()
	if err != nil {
		return Sample{}, err
	}
	var s Sample
	var lookups, wall, cpu float64
	if _, err := fmt.Sscan(line, &lookups, &wall, &cpu, &s.P50, &s.P99, &s.Writes); err != nil || lookups == 0 {
		return Sample{}, fmt.Errorf("incumbent: oneDNN said %q; want six numbers, the first above 0", line)
	}
	s.NS, s.CPU = wall/lookups, cpu/lookups
	return s, nil
}

// Close ends the process.
func (n *Process) Close() error {
	var errs []error
	if n.process != nil {
		errs = append(errs, n.in.Close(), n.process.Wait())
	}
	return errors.Join(append(errs, os.RemoveAll(n.folder))...)
}
