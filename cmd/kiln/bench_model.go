package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/onnx"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/measure"
	"github.com/kiln-cache/kiln/internal/processor"
)

// What bench model measures, where make brings it.
const (
	modelFolder = ".cache/minilm"
	peerFolder  = ".cache/onnxruntime"
)

const peerName = "onnxruntime's"

// modelBench is the encoder and onnxruntime with the same weights. In each round both take
// turns with the same ids; the quicker turn of each counts.
type modelBench struct {
	self     string // this program
	long     bool   // every length, and longer queues
	weights  string // what ours are rounded to
	theirs   *onnx.Peer
	encoders map[int]*encoder.Encoder // by workers
	figures  []measure.Figure
}

// benchModel measures MiniLM in pure Go beside onnxruntime. say gets the machine and the
// versions first. It takes some five minutes of a quiet machine, six times as long if
// it is to be long.
func benchModel(ctx context.Context, long bool, weights string, say func(object any, format string, args ...any) error) (_ []measure.Figure, err error) {
	if _, err := os.Stat(modelFolder); err != nil {
		return nil, fmt.Errorf("MiniLM: %w: %s is not there: in the root of a clone `make model` brings it", fault.ErrUnavailable, modelFolder)
	}
	b := &modelBench{long: long, weights: weights, encoders: make(map[int]*encoder.Encoder)}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if b.theirs, err = onnx.Open(ctx, peerFolder); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.theirs.Close()) }()
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rt.Close(context.WithoutCancel(ctx))) }()
	for _, workers := range []int{1, 2} {
		e, err := encoder.Open(ctx, rt, modelFolder, encoder.Config{Workers: workers, Weights: weights})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, e.Close(context.WithoutCancel(ctx))) }()
		b.encoders[workers] = e
	}
	name, _ := processor.Read()
	machine := fmt.Sprintf("%s, %d cores, %s; kiln %s, %s; %s", name, runtime.NumCPU(), instructions().Name(), Version, runtime.Version(), b.theirs.Versions)
	if err := say(map[string]string{"machine": machine}, "%s", machine); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{b.same, b.firsts, b.traffic, b.speeds, b.starts} {
		if err := step(ctx); err != nil {
			return b.figures, err
		}
	}
	return b.figures, nil
}

// textOf are the ids of a text of n tokens.
func textOf(n, seed int) []int32 {
	ids := make([]int32, n)
	for at := range ids {
		ids[at] = int32(1000 + (seed*31+at*17)%20000)
	}
	ids[0], ids[n-1] = 101, 102 // [CLS] and [SEP]
	return ids
}

func textsOf(lengths []int) (texts [][]int32) {
	for i, n := range lengths {
		texts = append(texts, textOf(n, i))
	}
	return texts
}

// same refuses a peer that computes something else.
func (b *modelBench) same(ctx context.Context) error {
	ids := textOf(20, 1)
	ours, err := b.encoders[1].EncodeTokens(ctx, [][]int32{ids})
	if err != nil {
		return err
	}
	theirs, err := b.theirs.Embed(ids)
	if err != nil {
		return err
	}
	worst := 0.0
	for i := range min(len(ours[0]), len(theirs)) {
		worst = max(worst, math.Abs(float64(ours[0][i]-theirs[i])))
	}
	most := 1e-5
	if b.weights == "bfloat16" {
		most = 1e-2
	}
	if len(ours[0]) != len(theirs) || !(worst < most) {
		return fmt.Errorf("onnxruntime's embedding has %d numbers and is %g apart from ours: %s and %s are not one model", len(theirs), worst, modelFolder, peerFolder)
	}
	return nil
}

// each has callers encode texts one by one.
func (b *modelBench) each(ctx context.Context, workers, callers int, texts [][]int32) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, callers)
	for caller := range callers {
		wg.Go(func() {
			for errs[caller] == nil {
				at := int(next.Add(1)) - 1
				if at >= len(texts) {
					return
				}
				_, errs[caller] = b.encoders[workers].EncodeTokens(ctx, texts[at:at+1])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// waiting is how many requests of the queue wait at a time.
const waiting = 64

// speeds measures one request after another, and a queue.
func (b *modelBench) speeds(ctx context.Context) error {
	questions, sentences := textsOf(data.Questions()[:100]), textsOf(data.Sentences())
	var queue [][]int32
	for i, text := range textsOf(data.Questions()) {
		queue = append(queue, text, sentences[i])
	}
	if !b.long {
		queue = queue[:2*waiting]
	}
	one := func(name string, texts [][]int32) work { return work{name: name, texts: texts} }
	long, longest := textsOf(slices.Repeat([]int{128}, 12)), textsOf(slices.Repeat([]int{512}, 4))
	for _, threads := range []int{1, 2} {
		if threads > runtime.NumCPU() {
			break
		}
		all := []work{
			one("100 questions, one by one", questions),
			one("128 tokens", long),
			one("512 tokens", longest),
			{name: "queue of mixed lengths, against batches in its order", texts: queue, queue: inOrder},
			{name: "the same, against batches sorted by length too", texts: queue, queue: sorted},
		}
		if threads > 1 {
			all = append(all, work{name: "128 tokens, by one caller", texts: long, alone: true}, work{name: "512 tokens, by one caller", texts: longest, alone: true})
		}
		for _, w := range all {
			if err := b.compare(ctx, w, threads); err != nil {
				return err
			}
		}
	}
	return nil
}

// work is what both sides compute.
type work struct {
	name  string
	texts [][]int32
	queue queueing
	alone bool // one caller, whose texts may have all threads
}

// queueing is how onnxruntime may compute a queue.
type queueing int

const (
	none    queueing = iota // callers with one text at a time
	inOrder                 // batches as they come
	sorted                  // or of what waits, sorted by length
)

// way is how onnxruntime may do it.
type way struct {
	name             string
	batches          [][][]int32
	callers, threads int
}

// ways are all that it has.
func (w work) ways(threads int) (all []way) {
	add := func(name string, batches [][][]int32) {
		if w.alone {
			all = append(all, way{name + ", one thread", batches, 1, 1})
		} else {
			all = append(all, way{name, batches, threads, 1})
		}
		if threads > 1 {
			all = append(all, way{name + ", threads within a call", batches, 1, threads})
		}
	}
	add("each alone", slices.Collect(slices.Chunk(w.texts, 1)))
	ordered := slices.Clone(w.texts)
	for part := range slices.Chunk(ordered, waiting) {
		slices.SortStableFunc(part, func(a, b []int32) int { return len(a) - len(b) })
	}
	for _, n := range []int{4, 8, 16, 32} {
		if w.queue >= inOrder {
			add(fmt.Sprintf("batches of %d in order", n), slices.Collect(slices.Chunk(w.texts, n)))
		}
		if w.queue >= sorted {
			add(fmt.Sprintf("batches of %d, sorted among %d", n, waiting), slices.Collect(slices.Chunk(ordered, n)))
		}
	}
	return all
}

// compare takes the figure of a work against the best way that onnxruntime has.
func (b *modelBench) compare(ctx context.Context, w work, threads int) error {
	const rounds, turns = 5, 2
	f := measure.Figure{Bench: fmt.Sprintf("model, speed, %s, threads: %d", w.name, threads), RatioTo: peerName, Goroutines: threads}
	best, quickest := way{}, measure.Disturbed
	for _, way := range w.ways(threads) {
		if err := b.theirs.Keep(way.name, way.batches); err != nil {
			return err
		}
		for range turns { // the first makes its session and its memory
			took, err := b.theirs.Time(way.name, way.callers, way.threads)
			if err != nil {
				return err
			}
			if took < quickest {
				best, quickest = way, took
			}
		}
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	callers := threads
	switch {
	case w.queue > none:
		callers = waiting
	case w.alone:
		callers = 1
	}
	ours := measure.Clocked(func() error { return b.each(ctx, threads, callers, w.texts) })
	theirs := func(int) (time.Duration, error) { return b.theirs.Time(best.name, best.callers, best.threads) }
	if _, err := ours(1); err != nil { // compiles
		return err
	}
	var all [2][]float64
	f, err := f.Take(ctx, rounds, func() (float64, error) {
		took, err := measure.Turns(ctx, turns, 1, ours, theirs)
		if err != nil {
			return 0, err
		}
		for side, t := range took {
			all[side] = append(all[side], 1e3*t.Seconds()/float64(len(w.texts)))
		}
		return speed(took), nil
	})
	f.Note = fmt.Sprintf("%.3f ms against %.3f ms a text (%s)", measure.SpreadOf(all[0]).Median, measure.SpreadOf(all[1]).Median, best.name)
	b.figures = append(b.figures, f)
	return err
}

// speed is ours, in times theirs, by the times of both.
func speed(took []time.Duration) float64 { return took[1].Seconds() / took[0].Seconds() }

// starts measures a process from its start to its first embedding, and the most memory
// that it holds after the questions.
func (b *modelBench) starts(ctx context.Context) error {
	const rounds = 6
	store, err := os.MkdirTemp("", "kiln-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(store)
	var ratios, memory [2][]float64
	var seconds [3][]float64
	var held [3]int64
	questions := data.Questions()[:100]
	for round := range rounds + 1 {
		sides := []func() (startup, error){
			func() (startup, error) {
				return serve(ctx, b.ours(ctx, filepath.Join(store, "store")), words(questions))
			},
			func() (startup, error) { return serve(ctx, b.ours(ctx, ""), words(questions)) },
			func() (startup, error) { return serve(ctx, b.peers(ctx), numbers(questions)) },
		}
		for turn := range sides { // each takes each place: whoever starts behind the peer's end is slower
			side := (round + turn) % len(sides)
			s, err := sides[side]()
			if err != nil {
				return err
			}
			if round > 0 { // the first fills the store and the system's cache of files
				seconds[side], held[side] = append(seconds[side], s.first.Seconds()), s.memory
			}
		}
		if round > 0 {
			for side := range ratios {
				ratios[side] = append(ratios[side], seconds[side][round-1]/seconds[2][round-1])
				if held[side] > 0 {
					memory[side] = append(memory[side], float64(held[side])/float64(held[2]))
				}
			}
		}
	}
	for side, name := range []string{"with a store", "without a store"} {
		f := measure.Figure{Bench: "model, start to first embedding, " + name, RatioTo: peerName, Goroutines: 1,
			Note: fmt.Sprintf("%.3f s against %.3f s", measure.SpreadOf(seconds[side]).Median, measure.SpreadOf(seconds[2]).Median)}
		b.figures = append(b.figures, f.From(ratios[side]))
		f = measure.Figure{Bench: "model, peak memory, " + name, RatioTo: peerName, Goroutines: 1,
			Note: fmt.Sprintf("%d MB against %d MB, after %d questions", held[side]>>20, held[2]>>20, len(questions))}
		if len(memory[side]) == 0 {
			f = f.Unmeasured("this system does not say what another process holds")
		} else {
			f = f.From(memory[side])
		}
		b.figures = append(b.figures, f)
	}
	return nil
}
