package main

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
)

//go:embed onednn/hit.c
var hitSource []byte

// The modes of onednn/hit.c, and the rows that show them.
const (
	mdsKept = "kept"
	allIn   = "all-in"

	nativeKept  = "oneDNN, descriptor + primitive"
	nativeAllIn = "oneDNN, all-in"
)

// native is oneDNN in a process of its own, where it measures itself in C.
// Owned by one goroutine.
type native struct {
	version string

	folder  string
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// errAbsent: what the comparison with oneDNN needs is not on this machine.
var errAbsent = errors.New("not available")

// openNative compiles the loop with the C compiler of the machine and loads the
// library in it. errAbsent says what is missing.
func openNative(ctx context.Context, library string) (*native, error) {
	if _, err := os.Stat(library); err != nil {
		return nil, fmt.Errorf("%w: %s is not there; `make fetch-onednn` brings it", errAbsent, library)
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, fmt.Errorf("%w: no C compiler named cc; install gcc", errAbsent)
	}
	folder, err := os.MkdirTemp("", "kiln-bench-")
	if err != nil {
		return nil, err
	}
	n := &native{folder: folder}
	if err := n.start(ctx, cc, library); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *native) start(ctx context.Context, cc, library string) error {
	source, program := filepath.Join(n.folder, "hit.c"), filepath.Join(n.folder, "hit")
	if err := os.WriteFile(source, hitSource, 0o600); err != nil {
		return err
	}
	if said, err := exec.CommandContext(ctx, cc, "-O2", "-pthread", "-o", program, source, "-ldl").CombinedOutput(); err != nil {
		return fmt.Errorf("bench: %s: %w: %s", cc, err, said)
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
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	if _, err := fmt.Sscanf(line, "ready %s", &n.version); err != nil {
		return fmt.Errorf("bench: oneDNN said %q: %w", line, err)
	}
	return nil
}

// line reads an answer; an error of the program becomes one of ours.
func (n *native) line() (string, error) {
	line, err := n.out.ReadString('\n')
	if said, is := strings.CutPrefix(line, "error: "); is {
		return "", fmt.Errorf("oneDNN: %s", strings.TrimSpace(said))
	}
	if err != nil {
		return "", fmt.Errorf("oneDNN: its process ended: %w", err)
	}
	return strings.TrimSpace(line), nil
}

func (n *native) slot(mode string, threads int, length time.Duration, writers bool) (sample, error) {
	beside := 0
	if writers {
		beside = 1
	}
	if _, err := fmt.Fprintln(n.in, mode, threads, beside, max(1, length.Milliseconds())); err != nil {
		return sample{}, fmt.Errorf("oneDNN: %w", err)
	}
	line, err := n.line()
	if err != nil {
		return sample{}, err
	}
	s := sample{Hits: 1} // the library creates what it does not hold: it tells no misses
	var lookups, wall, cpu float64
	if _, err := fmt.Sscan(line, &lookups, &wall, &cpu, &s.P50, &s.P99, &s.Writes); err != nil || lookups == 0 {
		return sample{}, fmt.Errorf("bench: oneDNN said %q; want six numbers, the first above 0", line)
	}
	s.NS, s.CPU = wall/lookups, cpu/lookups
	return s, nil
}

func (n *native) close() error {
	var errs []error
	if n.process != nil {
		errs = append(errs, n.in.Close(), n.process.Wait())
	}
	return errors.Join(append(errs, os.RemoveAll(n.folder))...)
}
