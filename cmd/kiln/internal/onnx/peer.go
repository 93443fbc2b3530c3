// Package onnx is onnxruntime, as its users have it: in a Python process of its own, which
// measures itself (peer.py). It is for measurements only.
package onnx

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

//go:embed peer.py
var script string

// Peer is such a process. Owned by one goroutine.
type Peer struct {
	Versions string // of what computes

	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

// Command runs the script with what the folder has: onnxruntime in site, and model.onnx.
// What is not there matches fault.ErrUnavailable.
func Command(ctx context.Context, folder string, args ...string) (*exec.Cmd, error) {
	absent := func(what string) error {
		return fmt.Errorf("onnxruntime: %w: %s is not there: in the root of a clone `make fetch-onnxruntime` brings it", fault.ErrUnavailable, what)
	}
	for _, name := range []string{"model.onnx", "site"} {
		if path := filepath.Join(folder, name); exists(path) != nil {
			return nil, absent(path)
		}
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return nil, absent("python3")
	}
	site, err := filepath.Abs(filepath.Join(folder, "site"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, python, append([]string{"-c", script, filepath.Join(folder, "model.onnx")}, args...)...)
	cmd.Env = append(cmd.Environ(), "PYTHONPATH="+site)
	return cmd, nil
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

// Open starts the process. ErrUnavailable says what it lacks.
func Open(ctx context.Context, folder string) (*Peer, error) {
	cmd, err := Command(ctx, folder)
	if err != nil {
		return nil, err
	}
	p := &Peer{process: cmd}
	cmd.Stderr = os.Stderr
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a, err := p.read()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", fault.ErrUnavailable, err), p.in.Close(), cmd.Wait())
	}
	p.Versions = a.Versions
	return p, nil
}

type answer struct {
	Error     string
	Versions  string
	Seconds   float64
	Embedding []float32
}

func (p *Peer) ask(request map[string]any) (a answer, err error) {
	text, err := json.Marshal(request)
	if err != nil {
		return a, err
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		return a, fmt.Errorf("onnxruntime: %w", err)
	}
	return p.read()
}

func (p *Peer) read() (a answer, err error) {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return a, fmt.Errorf("onnxruntime: its process ended: %w", err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return a, fmt.Errorf("onnxruntime: it said %.100q: %w", line, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("onnxruntime: %s", a.Error)
	}
	return a, nil
}

// Keep hands it batches of texts under a name. A batch is padded to its longest text.
func (p *Peer) Keep(name string, batches [][][]int32) error {
	_, err := p.ask(map[string]any{"name": name, "batches": batches})
	return err
}

// Time is how long it computes the batches of a name: callers take them in turn, each
// with as many threads.
func (p *Peer) Time(name string, callers, threads int) (time.Duration, error) {
	a, err := p.ask(map[string]any{"time": name, "callers": callers, "threads": threads})
	return time.Duration(a.Seconds * float64(time.Second)), err
}

// Embed gives the embedding of a text.
func (p *Peer) Embed(ids []int32) ([]float32, error) {
	a, err := p.ask(map[string]any{"embed": ids})
	return a.Embedding, err
}

// Close ends the process.
func (p *Peer) Close() error { return errors.Join(p.in.Close(), p.process.Wait()) }
