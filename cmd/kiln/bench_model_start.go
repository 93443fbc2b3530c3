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

	"github.com/kiln-cache/kiln/cmd/kiln/internal/onnx"
)

// ours is kiln embed as a process, with a store if one is named.
func (b *modelBench) ours(ctx context.Context, store string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, b.self, "embed", "--model", modelFolder, "--weights", b.weights)
	if store != "" {
		cmd.Env = append(cmd.Environ(), "KILN_STORE_DIR="+store)
	}
	return cmd
}

// peers is onnxruntime as such a process.
func (*modelBench) peers(ctx context.Context) *exec.Cmd {
	cmd, err := onnx.Command(ctx, peerFolder, "each")
	if err != nil { // it was there when the bench began
		return &exec.Cmd{Path: peerFolder, Args: []string{peerFolder}, Err: err}
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

// server is a process that answers each line with one.
type server struct {
	cmd   *exec.Cmd
	said  strings.Builder // to stderr
	in    io.WriteCloser
	out   *bufio.Reader
	began time.Time
}

func startServer(cmd *exec.Cmd) (*server, error) {
	s := &server{cmd: cmd}
	cmd.Stderr = &s.said
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.in, s.out, s.began = in, bufio.NewReader(out), time.Now()
	return s, cmd.Start()
}

// ask has it answer a line, and says how long it took.
func (s *server) ask(line string) (took time.Duration, err error) {
	began := time.Now()
	if _, err = io.WriteString(s.in, line+"\n"); err == nil {
		_, err = s.out.ReadString('\n')
	}
	return time.Since(began), err
}

// end ends it. err is why it is to end; nil = it has answered all.
func (s *server) end(ctx context.Context, err error) error {
	if failed := errors.Join(s.in.Close(), s.cmd.Wait()); err != nil || failed != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("%s: %w: %s", s.cmd.Args[0], errors.Join(err, failed), s.said.String()))
	}
	return nil
}

// startup is what serve measured.
type startup struct {
	first  time.Duration // from the start of the process to its first answer
	memory int64         // the most it held, in bytes; 0 = unknown
}

// serve starts a process and has it answer lines.
func serve(ctx context.Context, cmd *exec.Cmd, lines []string) (s startup, err error) {
	process, err := startServer(cmd)
	if err != nil {
		return s, err
	}
	for i, line := range lines {
		if _, err = process.ask(line); err != nil {
			break
		}
		if i == 0 {
			s.first = time.Since(process.began)
		}
	}
	s.memory = peakOf(cmd.Process.Pid)
	return s, process.end(ctx, err)
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
