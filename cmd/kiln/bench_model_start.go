package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// ourServer is kiln embed as a process, with a store if one is named.
func ourServer(ctx context.Context, self, weights, store string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, self, "embed", "--model", modelFolder, "--weights", weights)
	if store != "" {
		cmd.Env = append(cmd.Environ(), "KILN_STORE_DIR="+store)
	}
	return cmd
}

// words are texts of these lengths, a line each.
func words(lengths []int) (lines []string) {
	for i, n := range lengths {
		lines = append(lines, strings.TrimSpace(strings.Repeat([]string{"oven ", "clay ", "brick ", "fire "}[i%4], n-2)))
	}
	return lines
}

// numbers are ids of texts of these lengths, a line each.
func numbers(lengths []int) (lines []string) {
	for _, ids := range textsOf(lengths) {
		line, _ := json.Marshal(ids) // numbers always are JSON
		lines = append(lines, string(line))
	}
	return lines
}

// startup is what serve measured.
type startup struct {
	first  time.Duration // from the start of the process to its first answer
	memory int64         // the most it held, in bytes; 0 = unknown
}

// serve starts a process that answers each line with one, and has it answer them.
func serve(ctx context.Context, cmd *exec.Cmd, lines []string) (s startup, err error) {
	var said strings.Builder
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		return s, err
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return s, err
	}
	out := bufio.NewReader(pipe)
	for i, line := range lines {
		if _, err = io.WriteString(in, line+"\n"); err == nil {
			_, err = out.ReadString('\n')
		}
		if err != nil {
			break
		}
		if i == 0 {
			s.first = time.Since(began)
		}
	}
	s.memory = peakOf(cmd.Process.Pid)
	if failed := errors.Join(in.Close(), cmd.Wait()); err != nil || failed != nil {
		return s, errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", cmd.Args[0], errors.Join(err, failed), said.String()))
	}
	return s, nil
}

// peakOf is the most memory that a process held so far, where Linux says it: what a parent
// is told of its child at the end counts the parent, too.
func peakOf(process int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			return kib << 10
		}
	}
	return 0
}
