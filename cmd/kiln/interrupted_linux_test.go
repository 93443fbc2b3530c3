package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/internal/measure"
)

// interrupted runs a command whose context has ended, and gives what it printed.
func interrupted(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == name })
	var out, errs bytes.Buffer
	if err := commands[i].run(ctx, newCall(commands[i], args, strings.NewReader(""), &out, &errs)); !errors.Is(err, context.Canceled) {
		t.Errorf("%s %v: %v", name, args, err)
	}
	return out.String()
}

// A bench that is interrupted prints the figures and rounds that it has; what has
// no round is left out.
func TestInterruptedBench(t *testing.T) {
	all := benches
	defer func() { benches = all }()
	benches = slices.Clone(all)[:2]
	benches[0].run = func(context.Context) ([]measure.Figure, error) {
		return []measure.Figure{measure.Figure{Bench: "first", RatioTo: "x"}.From([]float64{1, 2, 3})}, nil
	}
	benches[1].run = func(ctx context.Context) ([]measure.Figure, error) {
		begun := measure.Figure{Bench: "begun", RatioTo: "x", Gate: measure.AtMost(1)}
		return []measure.Figure{begun.From([]float64{2}), {Bench: "not begun"}}, ctx.Err()
	}
	out := interrupted(t, "bench", "all", "--gate")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[0], "first ") || !strings.HasPrefix(lines[1], "begun ") {
		t.Errorf("printed\n%s", out)
	}
}

// A stress run that is interrupted says what it found until then.
func TestInterruptedStress(t *testing.T) {
	for _, args := range [][]string{{}, {"--json"}} {
		if out := interrupted(t, "stress", args...); !strings.Contains(strings.ToLower(out), "operations") {
			t.Errorf("%v printed %q", args, out)
		}
	}
}

// Scripts that are interrupted end with 130, as every command does.
func TestInterruptedConform(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe.kiln") // nobody writes it
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	interrupted(t, "conform", pipe)
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // lets its reader end
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// A run that is interrupted reports the passes that ended, and of the one that did not
// what was measured until then.
func TestInterruptedRun(t *testing.T) {
	interrupt := func(p *os.Process) {
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	code, out, _ := started(t, "warm", interrupt, "run", "--model", "bert_tiny_l2_h128", "--requests", "1000", "--passes", "1000")
	if code != exitInterrupted || !strings.Contains(out, "cold") || !strings.Contains(out, "outputs: ") {
		t.Errorf("exit %d, stdout %q", code, out)
	}
	code, out, _ = started(t, "cold ", interrupt, "run", "--model", "bert_tiny_l2_h128", "--passes", "1000", "--json")
	var run report.Run
	if err := json.Unmarshal([]byte(out), &run); code != exitInterrupted || err != nil || len(run.Passes) == 0 {
		t.Fatalf("exit %d, %v, stdout %q", code, err, out)
	}
	if p := run.Passes[0]; p.Name != "cold" || p.Seconds <= 0 || p.Interrupted != (p.OutputSHA256 == "") {
		t.Errorf("a pass that was cut off: %+v", p)
	}
}

// An embedding that waits for a pipe to be opened ends when it is interrupted.
func TestInterruptedEmbedOpens(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&embedding{call: &call{}}).file(ctx, pipe); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // lets its reader end
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

// stuck is a pipe that nobody reads, until it is released. It says when it is written to.
type stuck struct{ written, release func() }

func (s stuck) Write(text []byte) (int, error) {
	s.written()
	s.release()
	return len(text), nil
}

// So does one that waits for the reader of what it prints.
func TestInterruptedEmbedPrints(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan struct{})
	defer close(released)
	var errs bytes.Buffer
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == "embed" })
	c := newCall(commands[i], []string{"--model", tinyModel}, strings.NewReader("w7\n"), stuck{cancel, func() { <-released }}, &errs)
	if err := embedCommand(ctx, c); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, stderr %q", err, errs.String())
	}
}
