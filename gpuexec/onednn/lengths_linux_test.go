package onednn

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/forward"
)

const tinyModel = "bert_tiny_l2_h128"

var modelName = flag.String("model", tinyModel, "BenchmarkNewLength: an op list of package data")

// listOf is an op list of package data.
func listOf(t testing.TB, name string) *forward.List {
	t.Helper()
	text, known := data.Model(name)
	if !known {
		t.Fatalf("no such model: %s", name)
	}
	list, err := forward.Parse("list", text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// watched is a Backend that tells which device it opened.
type watched struct {
	*Backend
	d *device
}

func (w *watched) Open(ctx context.Context, index int) (gpuexec.Device, error) {
	d, err := w.Backend.Open(ctx, index)
	if err == nil {
		w.d = d.(*device)
	}
	return d, err
}

// running is a model on a device of its own runtime, with capacities in bytes if given.
func running(t testing.TB, lib ops.Library, list *forward.List, programs, values kiln.Limit) (*forward.Model, *kiln.Runtime) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rt, err := kiln.Open(kiln.Config{ArtefactEntries: kiln.LimitOf(mostPrograms), ArtefactBytes: programs, Workers: 1, Listen: forward.Listen, Lookup: func(string) (string, bool) { return "", false }})
	must(err)
	t.Cleanup(func() { must(rt.Close(bg)) })
	exec, err := rt.Executor(bg, lib, 0)
	must(err)
	engine, err := rt.Constants().Engine(constants.CPU, 0, "")
	must(err)
	session, err := rt.Session(kiln.SessionConfig{Groups: kiln.LimitOf(4), Bytes: values})
	must(err)
	weights, err := forward.OpenWeights(list, 1)
	must(err)
	t.Cleanup(func() { must(weights.Close()) })
	m := forward.New(forward.Config{Session: session, Executor: exec, Library: lib, Engine: engine, Weights: weights})
	t.Cleanup(m.Close)
	return m, rt
}

// agrees fails where outputs are not those of another device.
func agrees(t *testing.T, other *forward.Model, ids [][]int32, out []float32) {
	t.Helper()
	want, err := other.Run(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := forward.Compare(out, wide(want.Output)); err != nil || !(d.Relative < 1e-4) {
		t.Errorf("%d tokens: %+v, %v", len(ids[0]), d, err)
	}
}

const mostPrograms = 64 // of the runtime, four shapes' worth

// E7: a model whose requests have 3 to 512 tokens, in no order: programs, primitives and
// bytes stay within what the capacities allow, and outputs are those of cpu.
func TestLengths(t *testing.T) {
	list := listOf(t, tinyModel)
	lib := &watched{Backend: backend(t)}
	here, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	m, rt := running(t, lib, list, kiln.Limit{}, kiln.Limit{})
	reference, _ := running(t, here, list, kiln.Limit{}, kiln.Limit{})
	lengths := rand.New(rand.NewPCG(1, 2)).Perm(510)
	if testing.Short() {
		lengths = lengths[:50]
	}
	worstBytes, worstObjects := int64(0), int64(0)
	for i, n := range lengths {
		ids := [][]int32{list.Tokens(1, i, n+3)}
		for range 2 { // in the general form, and in the exact one as far as it is built
			a, err := m.Run(bg, ids)
			if err != nil {
				t.Fatal(err)
			}
			if i%16 == 0 {
				agrees(t, reference, ids, a.Output)
			}
			lib.d.all.Wait()
		}
		s := rt.Artefacts().Stats()
		worstBytes, worstObjects = max(worstBytes, s.Bytes+s.LeasedBytes), max(worstObjects, lib.d.lib.Len())
		if s.Entries > mostPrograms {
			t.Fatalf("%d programs are resident, want at most %d", s.Entries, mostPrograms)
		}
		if n := lib.d.cache.Stats().Entries; n > spare {
			t.Fatalf("%d primitives are kept, want at most %d", n, spare)
		}
	}
	// A program has two forms at most, a form a primitive, its descriptor and four or five
	// memory objects; the session's open group and the plan hold a shape's programs apart.
	if most := int64(20*(mostPrograms+32) + 2*spare); worstObjects > most {
		t.Errorf("%d objects of the library, want at most %d", worstObjects, most)
	}
	t.Logf("%d lengths: at most %.1f MiB of programs by estimate, %d objects; %d launches in the general form, %d in the exact one",
		len(lengths), float64(worstBytes)/(1<<20), worstObjects, lib.d.general.Load(), lib.d.exact.Load())
}

// BenchmarkNewLength reports how much longer a model's first request of a length takes than
// a later one, over 50 lengths from 3 to 512 in no order. A request of another length lies
// before each. It reports wall time and processor time: median, ninth tenth, worst.
func BenchmarkNewLength(b *testing.B) {
	list := listOf(b, *modelName)
	for b.Loop() {
		lib := &watched{Backend: backend(b)}
		m, _ := running(b, lib, list, kiln.Limit{}, kiln.Limit{})
		run := func(ids [][]int32) (took, used time.Duration) {
			began, before := time.Now(), processTime(b)
			if _, err := m.Run(bg, ids); err != nil {
				b.Fatal(err)
			}
			return time.Since(began), processTime(b) - before
		}
		var ratios, cpuRatios []float64
		var last [][]int32
		for i, n := range rand.New(rand.NewPCG(1, 2)).Perm(510)[:51] {
			ids := [][]int32{list.Tokens(1, i, n+3)}
			took, used := run(ids)
			run(ids)
			lib.d.all.Wait() // nothing is built beside a later request, but what that has built
			if i > 0 {       // the first prepares the weights
				var later, laterUsed [3]time.Duration
				for j := range later {
					run(last)
					later[j], laterUsed[j] = run(ids)
				}
				slices.Sort(later[:])
				slices.Sort(laterUsed[:])
				ratios = append(ratios, float64(took)/float64(later[1]))
				cpuRatios = append(cpuRatios, float64(used)/float64(laterUsed[1]))
			}
			last = ids
		}
		b.Logf("%s, the first request by a later one: wall time %s, processor time %s", *modelName, spread(ratios), spread(cpuRatios))
	}
}

func spread(list []float64) string {
	slices.Sort(list)
	n := len(list)
	return fmt.Sprintf("%.2f in the median, %.2f at the ninth tenth, %.2f at worst", list[n/2], list[n*9/10], list[n-1])
}

// processTime is what this process has used of its processors.
func processTime(t testing.TB) time.Duration {
	t.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// E7: what a new length makes before it answers is few primitives, those of softmax,
// layer normalisation and gelu: the products have forms for any length.
func TestNewLengthMakesFewPrimitives(t *testing.T) {
	list := listOf(t, tinyModel)
	lib := &watched{Backend: backend(t)}
	m, _ := running(t, lib, list, kiln.Limit{}, kiln.Limit{})
	for i, n := range []int{400, 500} {
		before := lib.d.cache.Stats().Events[artefacts.Miss]
		lib.d.mu.Lock()
		lib.d.mu.building = true // nothing is built behind
		lib.d.mu.Unlock()
		if _, err := m.Run(bg, [][]int32{list.Tokens(1, i, n)}); err != nil {
			t.Fatal(err)
		}
		if made := lib.d.cache.Stats().Events[artefacts.Miss] - before; i > 0 && made != 3 {
			t.Errorf("%d tokens: %d primitives were made before the answer, want 3", n, made)
		}
		lib.d.mu.Lock()
		lib.d.mu.building, lib.d.mu.wanted = false, nil
		lib.d.mu.Unlock()
	}
}
