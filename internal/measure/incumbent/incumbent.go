// Package incumbent is oneDNN's own cache of primitives, as its users have it: in a process
// of its own, which measures itself in C (loop/hit.c), compiled by the C compiler of the machine.
// It is built for measurements only; nothing else of this module needs a C compiler.
package incumbent

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// Problem is a primitive that is looked up.
type Problem struct {
	Kind     string   // matmul, reorder, binary (an addition), eltwise, softmax (of the last dimension), layer_normalization
	Function string   // of an eltwise, or behind a matmul: gelu_erf, tanh, linear; empty = none
	Alpha    float64  // of the function, or the epsilon of a layer normalisation
	Tensors  []Tensor // of f32, in the library's order; the bias of a matmul may be left out
}

// Tensor is a descriptor of memory; Strides count elements.
type Tensor struct{ Sizes, Strides []int64 }

// Dense is a tensor of rows.
func Dense(sizes ...int64) Tensor {
	t := Tensor{sizes, make([]int64, len(sizes))}
	each := int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		t.Strides[i], each = each, each*sizes[i]
	}
	return t
}

// Matmuls are n products with a bias and a gelu, of 1 to n rows.
func Matmuls(n int) []Problem {
	const depth, width = 384, 1536
	all := make([]Problem, n)
	for i := range all {
		rows := int64(i) + 1
		all[i] = Problem{Kind: "matmul", Function: "gelu_erf", Tensors: []Tensor{Dense(rows, depth), Dense(depth, width), Dense(1, width), Dense(rows, width)}}
	}
	return all
}

// Reorders are n transpositions of 1 to n rows: of what the cache keeps they are the
// cheapest to make and take the least memory.
func Reorders(n int) []Problem {
	const width = 4
	all := make([]Problem, n)
	for i := range all {
		rows := int64(i) + 1
		all[i] = Problem{Kind: "reorder", Tensors: []Tensor{Dense(rows, width), {[]int64{rows, width}, []int64{1, rows}}}}
	}
	return all
}

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

// Fill empties the cache, gives it a capacity in entries, and makes the first of the problems, as
// many as it takes. Slot and Pass are about these problems from then on.
func (n *Process) Fill(problems []Problem, capacity int) error {
	text := fmt.Appendln(nil, "problems", len(problems), capacity)
	for _, p := range problems {
		text = fmt.Append(text, p.Kind, " ", cmp.Or(p.Function, "none"), " ", p.Alpha, " ", len(p.Tensors))
		for _, t := range p.Tensors {
			text = fmt.Append(text, " ", len(t.Sizes))
			for _, size := range slices.Concat(t.Sizes, t.Strides) {
				text = fmt.Append(text, " ", size)
			}
		}
		text = append(text, '\n')
	}
	var count int
	if err := n.ask(string(text), &count); err != nil {
		return err
	}
	_, err := n.Pass(Kept, -1, 0, min(len(problems), capacity))
	return err
}

// Pass is the time to set the capacity, unless it is below 0, and to look up that many of the
// problems once each, from one of them on and from the first behind the last.
func (n *Process) Pass(mode string, capacity, from, many int) (time.Duration, error) {
	var took int64
	err := n.ask(fmt.Sprintln("pass", mode, capacity, from, many), &took)
	return time.Duration(took), err
}

// ask sends a command and reads the numbers of its answer.
func (n *Process) ask(command string, numbers ...any) error {
	if _, err := io.WriteString(n.in, command); err != nil {
		return fmt.Errorf("oneDNN: %w", err)
	}
	line, err := n.line()
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(line, numbers...); err != nil {
		return fmt.Errorf("incumbent: oneDNN said %q; want %d numbers", line, len(numbers))
	}
	return nil
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
	var s Sample
	var lookups, wall, cpu float64
	err := n.ask(fmt.Sprintln("slot", mode, threads, beside, max(1, length.Milliseconds())), &lookups, &wall, &cpu, &s.P50, &s.P99, &s.Writes)
	if err == nil && lookups == 0 {
		err = errors.New("incumbent: oneDNN looked nothing up")
	}
	if err != nil {
		return Sample{}, err
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
