package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
)

const (
	mostFiles = 1 << 16  // that kiln embed reads
	mostLine  = 64 << 20 // bytes of a text
	mostBatch = 1 << 14  // texts
	fullBatch = 16 << 20 // bytes after which a batch takes no further text
)

// embedding is a `kiln embed`.
type embedding struct {
	*call
	model, device, weights, prompt, prefix string
	batch, maxTokens                       int

	encoder  *encoder.Encoder
	progress *report.Progress
	begun    time.Time
	drawn    time.Time
	texts    int // written
	cut      int // of them
	out      []byte
}

func embedCommand(ctx context.Context, c *call) error {
	e := &embedding{call: c, device: cpu.Name, weights: "float32", batch: 64}
	c.text(&e.model, "model DIR", "the folder of a model, as Hugging Face writes it", "a folder's name", nil)
	c.device(&e.device, "the device that computes")
	c.oneOf(&e.weights, "weights TYPE", "what weights of matrix products are rounded to: bfloat16 is quicker for short texts and less exact", "float32", "bfloat16")
	c.whole(&e.batch, "batch N", 1, mostBatch, "most texts that are computed together")
	c.whole(&e.maxTokens, "max-tokens N", 0, math.MaxInt32, "tokens of the longest text, a longer one is cut; 0 is as many as the model takes")
	c.text(&e.prompt, "prompt NAME", "the prompt of the folder that stands before each text, or none (default the folder's)", "a prompt's name", nil)
	c.text(&e.prefix, "prefix TEXT", "a text that stands before each text in place of a prompt of the folder, such as \"query: \"", "a text", nil)
	if err := c.parse(mostFiles); err != nil {
		return err
	}
	if _, strict := env.Wrong(c.settings, nil); strict { // else the runtime says it
		if err := c.environment(); err != nil {
			return err
		}
	}
	if e.model == "" {
		return usagef("name the folder of a model: --model DIR")
	}
	if _, _, err := libraries(c.settings, e.device)(backendOf(e.device)); err != nil {
		return usageError{err}
	}
	for _, file := range c.rest {
		if _, err := os.Stat(file); err != nil && file != "-" {
			return usageError{err}
		}
	}
	e.progress = report.NewProgress(c.stderr)
	c.stderr = e.progress // what is logged does not run into it
	defer e.progress.Clear()
	rt, err := kiln.Open(kiln.Config{Logger: c.logger()})
	if err != nil {
		return err
	}
	return errors.Join(e.run(ctx, rt), rt.Close(context.WithoutCancel(ctx)))
}

// run opens the model and embeds every file, or what comes on stdin.
func (e *embedding) run(ctx context.Context, rt *kiln.Runtime) (err error) {
	e.progress.Note("preparing weights")
	e.encoder, err = encoder.Open(ctx, rt, e.model, encoder.Config{Device: e.device, Weights: e.weights, MaxTokens: e.maxTokens, Prompt: e.prompt, Prefix: e.prefix})
	if err != nil {
		return refusal(err)
	}
	defer func() { err = errors.Join(err, e.encoder.Close(context.WithoutCancel(ctx))) }()
	if e.encoder.Info().Scores {
		return usagef("--model: %s is a cross-encoder, which scores pairs of texts and was trained for no embeddings: name a model of embeddings, or score pairs with Encoder.Score of package encoder", e.model)
	}
	e.begun = time.Now()
	files := e.rest
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, file := range files {
		if err := e.file(ctx, file); err != nil {
			return err
		}
	}
	if e.cut > 0 {
		e.logger().Warn("embed: texts were cut", "texts", e.cut, "of", e.texts, "tokens", e.encoder.Info().MaxTokens)
	}
	return nil
}

// refusal is the error of opening a model as the user of the command knows it.
func refusal(err error) error {
	flags := map[string]string{"MaxTokens": "--max-tokens", "Prefix": "--prefix", "Prompt": "--prompt", "Weights": "--weights"}
	if typed, ok := errors.AsType[*fault.Error](err); ok && flags[typed.Field] != "" {
		return usageError{fmt.Errorf("%s: %w", flags[typed.Field], err)}
	}
	if errors.Is(err, fault.ErrUnsupported) {
		return usageError{err}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return usageError{fmt.Errorf("--model: %w", err)}
	}
	return err
}

func (e *embedding) file(ctx context.Context, name string) error {
	input := e.stdin
	if name != "-" {
		f, err := interruptible(ctx, func() (*os.File, error) { return os.Open(name) })
		if err != nil && ctx.Err() != nil {
			return err
		} else if err != nil {
			return usageError{err}
		}
		defer f.Close()
		input = f
	}
	lines := &lines{name: name, from: bufio.NewReaderSize(input, 1<<18)}
	for {
		texts, err := interruptible(ctx, func() ([]string, error) { return lines.batch(e.batch) })
		if len(texts) > 0 {
			if err := e.embed(ctx, texts); err != nil {
				if len(texts) == 1 {
					return fmt.Errorf("%s: line %d: %w", name, lines.read, err)
				}
				return fmt.Errorf("%s: lines %d to %d: %w", name, lines.read-len(texts)+1, lines.read, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// lines are the texts of a file.
type lines struct {
	name string
	from *bufio.Reader
	read int
}

// batch gives the next texts: one at least, and more while they can be had without
// waiting for who writes them. Its error follows the texts.
func (l *lines) batch(most int) (texts []string, err error) {
	for size := 0; len(texts) < most && size < fullBatch; {
		if len(texts) > 0 {
			if ready, _ := l.from.Peek(l.from.Buffered()); bytes.IndexByte(ready, '\n') < 0 {
				break
			}
		}
		text, err := l.next()
		if err != nil {
			return texts, err
		}
		size += len(text)
		texts = append(texts, text)
	}
	return texts, nil
}

// next gives a line without its end. What follows the last end of a line is one if it is
// not empty.
func (l *lines) next() (string, error) {
	var line []byte
	for {
		part, err := l.from.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > mostLine:
			return "", usagef("%s: line %d is longer than %d bytes", l.name, l.read+1, mostLine)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && len(line) == 0:
			return "", io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return "", usageError{fmt.Errorf("%s: line %d: %w", l.name, l.read+1, err)}
		}
		l.read++
		line = bytes.TrimSuffix(line, []byte("\n"))
		return string(bytes.TrimSuffix(line, []byte("\r"))), nil
	}
}

// embed writes one line of JSON for each text.
func (e *embedding) embed(ctx context.Context, texts []string) error {
	embeddings, err := e.encoder.Encode(ctx, texts)
	if err != nil {
		return err
	}
	e.out = e.out[:0]
	for i, text := range texts {
		ids, cut := e.encoder.Tokenize(text)
		e.out = fmt.Appendf(e.out, `{"tokens":%d`, len(ids))
		if cut {
			e.cut++
			e.out = append(e.out, `,"cut":true`...)
		}
		e.out = append(e.out, `,"embedding":[`...)
		for at, v := range embeddings[i] {
			if v != v || math.IsInf(float64(v), 0) {
				return fmt.Errorf("texts[%d] has an embedding with %v, which JSON has no number for: are the weights sound?", i, v)
			}
			if at > 0 {
				e.out = append(e.out, ',')
			}
			e.out = strconv.AppendFloat(e.out, float64(v), 'g', -1, 32)
		}
		e.out = append(e.out, "]}\n"...)
	}
	// Whoever reads a pipe may have stopped reading. A write that is left alone has e.out to itself:
	// nothing is embedded after it.
	if _, err := interruptible(ctx, func() (int, error) { return e.stdout.Write(e.out) }); err != nil {
		return err
	}
	e.texts += len(texts)
	if now := time.Now(); now.Sub(e.drawn) > 100*time.Millisecond {
		e.drawn = now
		e.progress.Note(fmt.Sprintf("%d texts  %.0f/s", e.texts, float64(e.texts)/now.Sub(e.begun).Seconds()))
	}
	return nil
}
