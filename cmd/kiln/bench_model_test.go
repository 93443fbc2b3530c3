package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/cmd/kiln/internal/onnx"
	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/internal/measure"
)

// Without model or onnxruntime the bench says what brings them, and exits with 4.
func TestBenchModelWithoutPeer(t *testing.T) {
	t.Chdir(t.TempDir())
	code, out, errs := invoke("bench", "model")
	if code != exitFinding || out != "" || !strings.Contains(errs, "make model") {
		t.Errorf("without a model: %d, %q, %q", code, out, errs)
	}
	if err := os.MkdirAll(modelFolder, 0o777); err != nil {
		t.Fatal(err)
	}
	code, out, errs = invoke("bench", "model")
	if code != exitFinding || out != "" || !strings.Contains(errs, "make fetch-onnxruntime") || strings.Count(errs, "\n") != 1 {
		t.Errorf("without onnxruntime: %d, %q, %q", code, out, errs)
	}
	if code, _, errs := invoke("bench", "hits", "--weights", "bfloat16"); code != exitUsage || !strings.Contains(errs, "bench model") {
		t.Errorf("--weights with another bench: %d, %q", code, errs)
	}
	if code, _, errs := invoke("bench", "hits", "--long"); code != exitUsage || !strings.Contains(errs, "bench model") {
		t.Errorf("--long with another bench: %d, %q", code, errs)
	}
}

// Each way computes every text once; batches in order are those of the queue, and what is
// sorted is sorted among as many as wait.
func TestWays(t *testing.T) {
	var lengths []int
	for i := range 2*waiting + 5 {
		lengths = append(lengths, 3+(i*37)%50)
	}
	texts := textsOf(lengths)
	for queue, want := range map[queueing]int{none: 1, inOrder: 5, sorted: 9} {
		ways := work{texts: texts, queue: queue}.ways(1)
		if len(ways) != want || len(work{texts: texts, queue: queue}.ways(2)) != 2*want {
			t.Errorf("%v: %d ways, want %d", queue, len(ways), want)
		}
		for _, w := range ways {
			all := slices.Concat(w.batches...)
			if inOrder := !strings.Contains(w.name, "sorted"); inOrder != slices.EqualFunc(all, texts, func(a, b []int32) bool { return &a[0] == &b[0] }) {
				t.Errorf("%s: in order: %v", w.name, !inOrder)
			}
			for part := range slices.Chunk(all, waiting) {
				if strings.Contains(w.name, "sorted") && !slices.IsSortedFunc(part, func(a, b []int32) int { return len(a) - len(b) }) {
					t.Errorf("%s: not sorted", w.name)
				}
			}
			if len(all) != len(texts) {
				t.Errorf("%s: %d texts, want %d", w.name, len(all), len(texts))
			}
		}
	}
	if r := speed([]time.Duration{time.Second, 3 * time.Second}); r != 3 {
		t.Errorf("a third of the time is %v times the speed", r)
	}
}

// Of first calls the worst is a length that is slow in most processes, and the length that a
// process starts with does not count there.
func TestFirstFigures(t *testing.T) {
	meetings := []meeting{
		{order: []int{2, 0, 1}, cliffs: [2][]float64{{99, 1.1, 1.5}, {99, 1, 1}}},
		{order: []int{0, 1, 2}, cliffs: [2][]float64{{99, 1.4, 1.2}, {99, 1, 1}}},
		{order: []int{1, 2, 0}, cliffs: [2][]float64{{99, 1.2, 1.3}, {99, 1, 1}}},
		{order: []int{1, 2, 0}, cliffs: [2][]float64{{99, 8, 1.2}, {99, 2, 1}}},
	}
	figures := firstFigures(3, meetings)
	for i, want := range []struct{ ratio, most float64 }{{1.2, 8}, {8, 8}, {1.45, 1.45}} {
		if f := figures[i]; f.Ratio != want.ratio || f.Max != want.most || !strings.Contains(f.Note, "3 lengths in random order in 4 processes") {
			t.Errorf("%+v, want %+v", f, want)
		}
	}
}

// One time of a hundred does not count, on either side.
func TestTails(t *testing.T) {
	var passes [2][]time.Duration
	for i := range 100 {
		passes[0] = append(passes[0], time.Duration(200-i)*time.Millisecond)
		passes[1] = append(passes[1], time.Duration(i+1)*time.Millisecond)
	}
	passes[0][3], passes[1][0] = time.Hour, time.Minute
	if ratio := tails(passes); ratio != 2 {
		t.Errorf("%v, want 200 ms over 100 ms", ratio)
	}
}

// A process is timed to its first answer, and its memory is its own.
func TestServe(t *testing.T) {
	cat, err := exec.LookPath("cat")
	if err != nil {
		t.Skip("no cat here")
	}
	s, err := serve(t.Context(), exec.CommandContext(t.Context(), cat), []string{"a", "b"})
	if err != nil || s.first <= 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if runtime.GOOS == "linux" && (s.memory <= 0 || s.memory > 64<<20) {
		t.Errorf("cat holds %d bytes", s.memory)
	}
	if sh, err := exec.LookPath("sh"); err == nil {
		_, err := serve(t.Context(), exec.CommandContext(t.Context(), sh, "-c", "read line; echo said >&2; exit 3"), []string{"a", "b"})
		if err == nil || !strings.Contains(err.Error(), "said") {
			t.Errorf("a process that ends gives %v, want what it said", err)
		}
	}
}

// Both sides compute the same embedding, and figures have both times.
func TestBenchModelBesideOnnxruntime(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for folder, target := range map[string]string{modelFolder: "model", peerFolder: "fetch-onnxruntime"} {
		if _, err := os.Stat(filepath.Join(root, folder)); err != nil {
			t.Skipf("%s is not there; make %s brings it", folder, target)
		}
	}
	t.Chdir(root)
	rt, err := kiln.Open(kiln.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := encoder.Open(t.Context(), rt, modelFolder, encoder.Config{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := onnx.Open(t.Context(), peerFolder)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(theirs.Close(), e.Close(t.Context()), rt.Close(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	b := &modelBench{theirs: theirs, encoders: map[int]*encoder.Encoder{1: e}}
	if err := b.same(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.compare(t.Context(), work{name: "w", texts: textsOf([]int{3, 9, 5}), queue: sorted}, 1); err != nil {
		t.Fatal(err)
	}
	f := b.figures[0]
	if f.N < 3 || !(f.Ratio > 0) || f.RatioTo != peerName || !strings.Contains(f.Note, " ms against ") || f.Gate != (*measure.Gate)(nil) {
		t.Errorf("%+v", f)
	}
	if _, err := theirs.Time("absent", 1, 1); err == nil {
		t.Error("a name that was not kept was timed")
	}
	if s, err := theirs.Time("each alone", 1, 2); err != nil || s <= 0 {
		t.Errorf("after an error: %v, %v", s, err)
	}
}
