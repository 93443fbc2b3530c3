package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/internal/measure"
)

// benchRestart fills a store with one process and then starts more processes. The
// first pass of each takes every kernel from the store, its second pass none.
func benchRestart(ctx context.Context) ([]measure.Figure, error) {
	const processes, requests = 5, 600
	const atMost = 1.5 // times the second pass
	dir, err := os.MkdirTemp("", "kiln-bench-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	job := []string{"--requests", strconv.Itoa(requests), "--store", filepath.Join(dir, "store")}
	if _, err := runProcess(ctx, job...); err != nil {
		return nil, err
	}
	f := measure.Figure{Bench: "restart first pass", RatioTo: "the second of that process", Goroutines: 4, Gate: measure.AtMost(atMost)}
	var ratios []float64
	for range processes {
		passes, err := runProcess(ctx, job...)
		if err != nil {
			return []measure.Figure{f}, err
		}
		first, second := passes[0], passes[1]
		if first.Compiles > 0 || first.Hits.Disk == 0 || second.Hits.Disk > 0 {
			return nil, fmt.Errorf("%d compiles and %d kernels out of the store, then %d: want all of them in the first pass", first.Compiles, first.Hits.Disk, second.Hits.Disk)
		}
		ratios = append(ratios, first.Seconds/second.Seconds)
		f = f.From(ratios)
	}
	return []measure.Figure{f}, nil
}

// runProcess is kiln run as a process of its own, and what it says of its passes.
func runProcess(ctx context.Context, args ...string) ([]report.Pass, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(ctx, self, append([]string{"run", "--json", "--passes", "2"}, args...)...)
	child.Cancel = func() error { return child.Process.Signal(os.Interrupt) } // it clears up after itself
	text, err := child.Output()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("kiln run: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	var run report.Run
	if err := json.Unmarshal(text, &run); err != nil {
		return nil, err
	}
	if len(run.Passes) != 2 {
		return nil, fmt.Errorf("kiln run: %d passes, want 2", len(run.Passes))
	}
	return run.Passes, nil
}
