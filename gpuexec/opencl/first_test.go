package opencl_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/data"
	"github.com/kiln-cache/kiln/internal/drivertest"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/measure"
)

var (
	rounds = flag.Int("rounds", 1, "how often TestFirstResult starts each kind of process")
	child  = flag.String("child", "", "what a process that a test started is to do")
	store  = flag.String("store", "", "the store of such a process; empty = none")
)

// inProcess runs a child of this test on a store, with a folder for PoCL's own cache,
// and gives what it said.
func inProcess(t *testing.T, what, store, cache string, env ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^TestChild$", "-child="+what, "-store="+store)
	cmd.Env = append(append(cmd.Environ(), "POCL_CACHE_DIR="+cache), env...)
	said, err := drivertest.Said(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// TestChild is what the other tests here start as processes of their own.
func TestChild(t *testing.T) {
	switch *child {
	case "saxpy":
		fmt.Print("<<")
		saxpy(*store)
		fmt.Print(">>")
	case "total":
		fmt.Print("<<")
		total(*store)
		fmt.Print(">>")
	case "product":
		text := must(json.Marshal(firstProduct(t, *store)))
		fmt.Printf("<<%s>>", text)
	case "model":
		text := must(json.Marshal(firstOutput(*store)))
		fmt.Printf("<<%s>>", text)
	case "listing":
		b := gpuexec.Find(opencl.Name)
		_, err := gpuexec.Open(bg, gpuexec.Config{Backend: b})
		fmt.Printf("<<%+v\n%t %v>>", b.Devices(bg), errors.Is(err, fault.ErrUnavailable), err)
	case "grids":
		grids(t.Context())
	default:
		t.Skip("it is for processes that other tests start")
	}
}

// P6, P8: an example's kernel is compiled by the first process and comes out of the
// store in the next, though its driver's own cache is empty.
func TestExamplesInTwoProcesses(t *testing.T) {
	device(t)
	dir := filepath.Join(t.TempDir(), "store")
	for name, result := range map[string]string{"saxpy": "[12 24 36]", "total": "499500"} {
		for _, answer := range []string{"miss", "persistent_hit"} {
			if got, want := inProcess(t, name, dir, t.TempDir()), fmt.Sprintf("%s %s\n%s\n", name, answer, result); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	}
}

// E2: a loader that knows no driver is an absence that says what to install.
func TestNoDriver(t *testing.T) {
	device(t)
	said := inProcess(t, "listing", "", t.TempDir(), "OCL_ICD_VENDORS="+t.TempDir())
	listed, opened, _ := strings.Cut(said, "\n")
	const driver = "pocl-opencl-icd"
	if !strings.Contains(listed, "Available:false") || !strings.Contains(listed, driver) || !strings.HasPrefix(opened, "true") || !strings.Contains(opened, driver) {
		t.Errorf("%s, want ErrUnavailable and an absence, which say what to install", said)
	}
}

// A product of 128 x 768 by 768 x 3072 in tiles of 8 x 32, whose right-hand side comes in
// panels of 32 columns.
const product = `
kernel void product(global const float *a, global const float16 *b, global float *c) {
	global const float *row = a + get_global_id(0) * 8 * K;
	global const float16 *panel = b + get_global_id(1) * 2 * K;
	float16 sum[8][2];
	#pragma unroll
	for (int r = 0; r < 8; r++) sum[r][0] = sum[r][1] = 0;
	for (int k = 0; k < K; k++) {
		float16 left = panel[2 * k], right = panel[2 * k + 1];
		#pragma unroll
		for (int r = 0; r < 8; r++) {
			float16 x = row[r * K + k];
			sum[r][0] = fma(x, left, sum[r][0]);
			sum[r][1] = fma(x, right, sum[r][1]);
		}
	}
	#pragma unroll
	for (int r = 0; r < 8; r++) {
		global float *out = c + (get_global_id(0) * 8 + r) * N + get_global_id(1) * 32;
		vstore16(sum[r][0], 0, out);
		vstore16(sum[r][1], 0, out + 16);
	}
}`

const rows, depth, columns = 128, 768, 3072

// firstMade is how long a process took to its first result, and where kernels were from.
type firstMade struct {
	From    string
	Seconds float64
	Whole   float64 // with the making of weights; 0 where there are none
}

// firstProduct opens everything and computes one product.
func firstProduct(t *testing.T, dir string) (made firstMade) {
	a, b, c := make([]float32, rows*depth), make([]float32, depth*columns), make([]float32, rows*columns)
	for i := range a {
		a[i] = float32(i%7) - 3
	}
	for i := range b {
		b[i] = float32(i%5) - 2 // of the panels, one after the other
	}
	began := time.Now()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: func(e kiln.Event) { made.From = string(e.Artefact) }}))
	defer rt.Close(bg)
	e := must(rt.Executor(bg, gpuexec.Find(opencl.Name), 0))
	group := must(must(rt.Session(kiln.SessionConfig{})).Group(bg, []int64{rows, depth, columns}))
	defer group.Close()
	src := source(t, gpuexec.Code{Entry: "product", Text: product, Block: gpuexec.Size{1}, Options: []string{"-cl-std=CL1.2"},
		Defines: map[string]string{"K": fmt.Sprint(depth), "N": fmt.Sprint(columns)}}, buffer(4*8*depth), buffer(4*32*depth), buffer(4*8*columns))
	kernel := must(group.Kernel(bg, "product", e, src))
	x, y, z := upload(t, e, a), upload(t, e, b), must(e.Alloc(bg, 4*rows*columns))
	defer z.Release()
	check(e.Submit(bg, gpuexec.Launch{Kernel: kernel, Grid: gpuexec.Size{rows / 8, columns / 32},
		Args: []gpuexec.Arg{gpuexec.BufferArg(x), gpuexec.BufferArg(y), gpuexec.BufferArg(z)}}))
	check(e.Read(bg, z, 0, gpuexec.BytesOf(c)))
	made.Seconds = time.Since(began).Seconds()
	for _, at := range [][2]int{{0, 0}, {7, 31}, {8, 32}, {100, 1234}, {rows - 1, columns - 1}} {
		want := 0.0
		for k := range depth {
			want += float64(a[at[0]*depth+k]) * float64(b[at[1]/32*32*depth+32*k+at[1]%32])
		}
		if got := float64(c[at[0]*columns+at[1]]); math.Abs(got-want) > 1e-3*(1+math.Abs(want)) {
			t.Errorf("element %v is %v, want %v", at, got, want)
		}
	}
	return made
}

// firstOutput opens everything and runs MiniLM once, on 128 tokens. Seconds leaves out the
// making of the weights, which no cache helps, and Whole does not.
func firstOutput(dir string) (made firstMade) {
	text, _ := data.Model("minilm_l6_h384")
	list := must(forward.Parse("minilm_l6_h384", text))
	weights := must(forward.OpenWeights(list, 1))
	defer weights.Close()
	began := time.Now()
	rt := must(kiln.Open(kiln.Config{StoreDir: dir, Listen: forward.Listen}))
	defer rt.Close(bg)
	lib := ops.Find(opencl.Name)
	e := must(rt.Executor(bg, lib, 0))
	m := forward.New(forward.Config{Session: must(rt.Session(kiln.SessionConfig{})), Executor: e, Library: lib,
		Engine: must(rt.Constants().Engine(constants.CPU, 0, "")), Weights: weights})
	defer m.Close()
	preparing := time.Now()
	check(m.Prepare(bg))
	prepared := time.Since(preparing)
	a := must(m.Run(bg, [][]int32{list.Tokens(1, 0, 128)}))
	made.Whole = time.Since(began).Seconds()
	made.Seconds = made.Whole - prepared.Seconds()
	switch {
	case a.Compiles > 0 && a.Disk == 0:
		made.From = "miss"
	case a.Disk > 0 && a.Compiles == 0:
		made.From = "persistent_hit"
	}
	return made
}

// P6: a new process computes its first product, and the first output of a whole model,
// from source with empty caches, from the driver's own cache, and from a store alone, in
// turns: -rounds=9 -v gives figures. From three rounds on, on PoCL, they are held to their gates.
func TestFirstResult(t *testing.T) {
	device(t)
	for _, what := range []string{"product", "model"} {
		t.Run(what, func(t *testing.T) { firstResults(t, what) })
	}
}

func firstResults(t *testing.T, what string) {
	dir, warm := filepath.Join(t.TempDir(), "store"), t.TempDir()
	run := func(store, cache, from string) firstMade {
		t.Helper()
		var made firstMade
		if err := json.Unmarshal([]byte(inProcess(t, what, store, cache)), &made); err != nil || made.From != from {
			t.Fatalf("%v: the kernels came from %q, want %q", err, made.From, from)
		}
		return made
	}
	run(dir, warm, "miss")
	kinds := []struct {
		name    string
		gate    *measure.Gate // times the store's
		made    []firstMade
		measure func() firstMade
	}{
		{"from source, caches empty", measure.AtLeast(12), nil, func() firstMade { return run("", t.TempDir(), "miss") }},
		{"from source, PoCL's cache warm", measure.AtLeast(1), nil, func() firstMade { return run("", warm, "miss") }},
		{"from the store, PoCL's cache empty", nil, nil, func() firstMade { return run(dir, t.TempDir(), "persistent_hit") }},
	}
	held := *rounds >= 3 && strings.Contains(device(t).Devices(bg)[0].Driver, "PoCL")
	for range *rounds {
		for i := range kinds {
			kinds[i].made = append(kinds[i].made, kinds[i].measure())
		}
	}
	stored := kinds[2].made
	for _, k := range kinds {
		var ms, whole, times []float64
		for round, made := range k.made {
			ms, whole = append(ms, 1e3*made.Seconds), append(whole, 1e3*made.Whole)
			times = append(times, made.Seconds/stored[round].Seconds)
		}
		line := fmt.Sprintf("%-36s %.1f ms, %.1f times the store's (median, least, most)", k.name, measure.SpreadOf(ms), measure.SpreadOf(times))
		if whole[0] > 0 {
			line += fmt.Sprintf("; with weights %.1f ms", measure.SpreadOf(whole))
		}
		t.Log(line)
		if f := (measure.Figure{Gate: k.gate}).From(times); held && !f.Holds() {
			t.Errorf("%s: %.1f times the store's, gate %v", k.name, f.Ratio, f.Gate)
		}
	}
}
