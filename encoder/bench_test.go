package encoder

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/encoder/internal/folder"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/measure"
)

// questions are ids of the lengths of 300 questions, in the order they came.
func questions() (texts [][]int32) {
	for i, n := range data.Questions() {
		ids := make([]int32, n)
		for at := range ids {
			ids[at] = int32(1000 + (i*31+at*17)%20000)
		}
		texts = append(texts, ids)
	}
	return texts
}

// BenchmarkPacked has one worker compute questions of MiniLM: one by one with padding,
// one by one packed, and packed into batches of up to so many tokens, in turns of 100. It
// reports the first way's time over that of each other: median, least and most of the runs.
func BenchmarkPacked(b *testing.B) {
	dir := "../.cache/minilm"
	if _, err := os.Stat(dir); err != nil {
		b.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	padded, packed := benchModel(b, dir, false), benchModel(b, dir, true)
	texts := questions()
	run := func(m *forward.Model, ids [][]int32) {
		if _, err := m.Run(b.Context(), ids); err != nil {
			b.Fatal(err)
		}
	}
	ways := []struct {
		name  string
		model *forward.Model
		most  int // tokens of a batch of more than one
	}{{"padded", padded, 0}, {"alone", packed, 0}, {"128", packed, 128}, {"256", packed, 256}, {"512", packed, 512}, {"1024", packed, 1024}}
	var rounds [][]float64
	for b.Loop() {
		took := make([]float64, len(ways))
		for part := range slices.Chunk(texts, 100) {
			for w, way := range ways {
				start := time.Now()
				for rest := part; len(rest) > 0; {
					n, used := 1, len(rest[0])
					for n < len(rest) && used+len(rest[n]) <= way.most {
						used, n = used+len(rest[n]), n+1
					}
					run(way.model, rest[:n])
					rest = rest[n:]
				}
				took[w] += time.Since(start).Seconds()
			}
		}
		rounds = append(rounds, took)
	}
	for w, way := range ways[1:] {
		var ratios []float64
		for _, took := range rounds[1:] { // in the first all shapes are new
			ratios = append(ratios, took[0]/took[w+1])
		}
		if len(ratios) > 0 {
			s := measure.SpreadOf(ratios)
			b.Log(way.name, fmt.Sprintf("%+v", s))
		}
	}
}

func benchModel(b *testing.B, dir string, packed bool) *forward.Model {
	b.Helper()
	f, err := folder.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		b.Fatal(err)
	}
	lib, err := cpu.New("auto")
	if err != nil {
		b.Fatal(err)
	}
	exec, err := rt.Executor(b.Context(), lib, 0)
	if err != nil {
		b.Fatal(err)
	}
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	if err != nil {
		b.Fatal(err)
	}
	bucket, err := kiln.ParseBucketing(lengths)
	if err != nil {
		b.Fatal(err)
	}
	session, err := rt.Session(kiln.SessionConfig{Bucket: bucket})
	if err != nil {
		b.Fatal(err)
	}
	m := forward.New(forward.Config{Session: session, Executor: exec, Library: lib, Engine: engine, Weights: f.Weights, Packed: packed})
	b.Cleanup(func() {
		m.Close()
		if err := errors.Join(rt.Close(context.Background()), f.Weights.Close()); err != nil {
			b.Error(err)
		}
	})
	if err := m.Prepare(b.Context()); err != nil {
		b.Fatal(err)
	}
	return m
}

// BenchmarkFirstCall has a model compute texts of all lengths in random order, and then four
// times more in other orders: a later call too comes after one of another length, which has
// taken the caches. It reports the time of the first call over the median of the others.
func BenchmarkFirstCall(b *testing.B) {
	dir := "../.cache/minilm"
	if _, err := os.Stat(dir); err != nil {
		b.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	for range b.N {
		m, random := benchModel(b, dir, true), rand.New(rand.NewPCG(1, 1))
		var took [510][]float64
		for range 5 {
			for _, n := range random.Perm(len(took)) {
				start := time.Now()
				if _, err := m.Run(b.Context(), [][]int32{make([]int32, n+3)}); err != nil {
					b.Fatal(err)
				}
				took[n] = append(took[n], time.Since(start).Seconds())
			}
		}
		var ratios []float64
		for _, calls := range took {
			slices.Sort(calls[1:])
			ratios = append(ratios, calls[0]*2/(calls[2]+calls[3]))
		}
		slices.Sort(ratios)
		b.Log("median", measure.Percentile(ratios, 50), "99 of 100 below", measure.Percentile(ratios, 99), "worst", ratios[len(ratios)-1])
	}
}

// benchEncoder is MiniLM with two workers, and computes one question after another.
func benchEncoder(b *testing.B) (each func(ids [][]int32) (took []float64)) {
	b.Helper()
	return benchEncoderOn(b, 0)
}

// benchEncoderOn is benchEncoder on so many of the runtime's workers; 0 = one a core.
func benchEncoderOn(b *testing.B, cores int) (each func(ids [][]int32) (took []float64)) {
	b.Helper()
	return benchEncoderWith(b, kiln.Config{Workers: cores})
}

// benchEncoderWith is benchEncoder on a runtime of that config.
func benchEncoderWith(b *testing.B, cfg kiln.Config) (each func(ids [][]int32) (took []float64)) {
	b.Helper()
	dir := "../.cache/minilm"
	if _, err := os.Stat(dir); err != nil {
		b.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	rt, err := kiln.Open(cfg)
	if err != nil {
		b.Fatal(err)
	}
	e, err := Open(b.Context(), rt, dir, Config{Workers: 2})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := errors.Join(e.Close(context.Background()), rt.Close(context.Background())); err != nil {
			b.Error(err)
		}
	})
	each = func(ids [][]int32) (took []float64) {
		for at := range ids {
			start := time.Now()
			if _, err := e.EncodeTokens(b.Context(), ids[at:at+1]); err != nil {
				b.Error(err)
			}
			took = append(took, time.Since(start).Seconds())
		}
		return took
	}
	each(questions()) // compiles
	return each
}

// BenchmarkTwoWorkers has one caller and then two, each of which takes the next, compute the same questions, in turns, and
// reports the time of one over that of two, the quicker of two turns each: median, least and most.
func BenchmarkTwoWorkers(b *testing.B) {
	each := benchEncoder(b)
	texts := questions()[:100]
	var ratios []float64
	for b.Loop() {
		quickest := [2]time.Duration{math.MaxInt64, math.MaxInt64}
		for turn := range 4 {
			start, callers := time.Now(), turn%2+1
			var wg sync.WaitGroup
			var next atomic.Int64
			for range callers {
				wg.Go(func() {
					for at := next.Add(1) - 1; at < int64(len(texts)); at = next.Add(1) - 1 {
						each(texts[at : at+1])
					}
				})
			}
			wg.Wait()
			quickest[turn%2] = min(quickest[turn%2], time.Since(start))
		}
		ratios = append(ratios, quickest[0].Seconds()/quickest[1].Seconds())
	}
	b.Logf("%+v", measure.SpreadOf(ratios))
}

// BenchmarkMapped has texts computed with weights in the process's own memory and with weights
// mapped from a store, in turns on one core, and reports the first's median time over the
// second's for the questions and for each length: median, least and most.
func BenchmarkMapped(b *testing.B) {
	stored := kiln.Config{Workers: 1, StoreDir: b.TempDir()}
	b.Run("store", func(b *testing.B) { benchEncoderWith(b, stored) }) // closed at its end, when all is stored
	own, mapped := benchEncoderOn(b, 1), benchEncoderWith(b, stored)
	texts := map[string][][]int32{"questions": questions()[:50]}
	for _, n := range []int{128, 512} {
		texts[fmt.Sprintf("tokens=%d", n)] = [][]int32{make([]int32, n)}
	}
	for name, ids := range texts {
		b.Run(name, func(b *testing.B) {
			var ratios []float64
			for b.Loop() {
				var took [2]float64
				for range 4 {
					for _, text := range ids {
						took[0] += own([][]int32{text})[0]
						took[1] += mapped([][]int32{text})[0]
					}
				}
				ratios = append(ratios, took[0]/took[1])
			}
			b.Logf("%+v", measure.SpreadOf(ratios))
		})
	}
}

// BenchmarkAlone has texts computed one after another, with nobody else, by a runtime of one
// worker and by one that has a worker a core, in turns, and reports the first's median time
// over the second's for each length: median, least and most.
func BenchmarkAlone(b *testing.B) {
	if runtime.GOMAXPROCS(0) < 2 {
		b.Skip("there is one core")
	}
	one, all := benchEncoderOn(b, 1), benchEncoder(b)
	for _, n := range []int{16, 32, 48, 64, 128, 256, 512} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			ids := make([]int32, n)
			for at := range ids {
				ids[at] = int32(1000 + at*17)
			}
			var ratios []float64
			for b.Loop() {
				var took [2][]float64
				for range 10 {
					took[0] = append(took[0], one([][]int32{ids})...)
					took[1] = append(took[1], all([][]int32{ids})...)
				}
				ratios = append(ratios, measure.SpreadOf(took[0]).Median/measure.SpreadOf(took[1]).Median)
			}
			b.Logf("%+v", measure.SpreadOf(ratios))
		})
	}
}

// BenchmarkBesideGC has questions computed alone and beside a goroutine that never lets the
// garbage collector rest, in turns, and reports the 99th percentile of their times beside it over that
// alone: median, least and most. It does the same with loops of multiplications that take as
// long as the questions: what they lose is the collector's and the scheduler's alone. The
// goroutine keeps 36 KiB to 144 MiB alive, which the collector marks each time.
func BenchmarkBesideGC(b *testing.B) {
	for _, live := range []int{1 << 8, 1 << 14, 1 << 17, 1 << 20} {
		b.Run(fmt.Sprintf("live=%dKiB", live*int(unsafe.Sizeof([18]*int{}))>>10), func(b *testing.B) {
			each := benchEncoder(b)
			texts := questions()
			var ratios, loops []float64
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				alone := each(texts)
				steps := stepsFor(alone)
				loopsAlone := loopEach(steps)
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() { litter(stop, live) })
				beside, loopsBeside := each(texts), loopEach(steps)
				close(stop)
				wg.Wait()
				p99 := func(took []float64) float64 { slices.Sort(took); return measure.Percentile(took, 99) }
				ratios = append(ratios, p99(beside)/p99(alone))
				loops = append(loops, p99(loopsBeside)/p99(loopsAlone))
			}
			runtime.ReadMemStats(&after)
			b.Logf("%d collections, questions %+v, loops %+v", after.NumGC-before.NumGC, measure.SpreadOf(ratios), measure.SpreadOf(loops))
		})
	}
}

// litter allocates until it is stopped; so many arrays of 16 pointers live at any time.
func litter(stop <-chan struct{}, alive int) {
	live := make([]*[16]*int, alive)
	for at := 0; ; at = (at + 1) % len(live) {
		select {
		case <-stop:
			return
		default:
			live[at] = &[16]*int{new(int)}
		}
	}
}

var product float64

func multiply(steps int) {
	x := 1.0
	for range steps {
		x = x*1.0000001 + 1e-9
	}
	product = x
}

// stepsFor gives the multiplications that take as long, in seconds.
func stepsFor(took []float64) (steps []int) {
	const some = 1 << 22
	start := time.Now()
	multiply(some)
	perSecond := some / time.Since(start).Seconds()
	for _, t := range took {
		steps = append(steps, int(t*perSecond))
	}
	return steps
}

func loopEach(steps []int) (took []float64) {
	for _, n := range steps {
		start := time.Now()
		multiply(n)
		took = append(took, time.Since(start).Seconds())
	}
	return took
}

// BenchmarkBFloat16 has one worker compute texts of MiniLM with weights in float32 and in
// bfloat16, in turns of one call, and reports the first's time over the second's: median,
// least and most of the runs.
func BenchmarkBFloat16(b *testing.B) {
	dir := "../.cache/minilm"
	if _, err := os.Stat(dir); err != nil {
		b.Skip("the model MiniLM is not here; fetch it with: make model")
	}
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		b.Fatal(err)
	}
	var sides [2]*Encoder
	for i, weights := range []string{float32s, bfloat16s} {
		if sides[i], err = Open(b.Context(), rt, dir, Config{Workers: 1, Weights: weights}); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		ctx := context.WithoutCancel(b.Context())
		if err := errors.Join(sides[0].Close(ctx), sides[1].Close(ctx), rt.Close(ctx)); err != nil {
			b.Error(err)
		}
	})
	long := func(n int) [][]int32 { return slices.Repeat([][]int32{slices.Repeat([]int32{2000}, n)}, 4) }
	ways := []struct {
		name  string
		texts [][]int32
		calls int // texts of one
	}{{"questions one by one", questions()[:100], 1}, {"the same, 32 a call", questions()[:96], 32}, {"128 tokens", long(128), 1}, {"512 tokens", long(512), 1}}
	ratios := make([][]float64, len(ways))
	for round := 0; b.Loop(); round++ {
		for w, way := range ways {
			var took [2]time.Duration
			for part := range slices.Chunk(way.texts, way.calls) {
				for i, e := range sides {
					start := time.Now()
					if _, err := e.EncodeTokens(b.Context(), part); err != nil {
						b.Fatal(err)
					}
					took[i] += time.Since(start)
				}
			}
			if round > 0 { // in the first all shapes are new
				ratios[w] = append(ratios[w], took[0].Seconds()/took[1].Seconds())
			}
		}
	}
	for w, way := range ways {
		if len(ratios[w]) > 0 {
			b.Log(way.name, fmt.Sprintf("%+v", measure.SpreadOf(ratios[w])))
		}
	}
}
