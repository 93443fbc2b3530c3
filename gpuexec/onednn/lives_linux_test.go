package onednn

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/drivertest"
	"github.com/kiln-cache/kiln/limit"
)

var (
	long = flag.Bool("long", false, "TestLives: 100,000 primitives at a capacity of 1,024, and 10,000 opened devices")
	side = flag.String("side", "", "TestLives: what this process makes, kiln or library; empty = starts one of each")
)

// remains are what a side of TestLives leaves.
type remains struct {
	Most, Left  int64      // objects of the library: at most, late ones among them, and at the end
	Grown, All  int64      // bytes of resident memory: what came after the first tenth, and all
	Microtenths [2]float64 // median time to make a primitive, in the second tenth and in the last
	Opened      int64      // bytes by which opening and closing has made the process grow
}

// distinct is a request that no other number has.
func distinct(i int) primitive.Spec {
	a, b := int64(1+i/4%500), int64(1+i/2000)
	x := Dense("f32", a, b)
	switch i % 4 {
	case 0:
		return spec("eltwise", "inference", "gelu_erf", nil, x, x)
	case 1:
		return spec("softmax", "inference", "accurate", []param{ints("axis", 1)}, x, x)
	case 2:
		return primitive.Spec{Kind: "layer_normalization", Op: primitive.Operation{Direction: "inference", Params: []param{float("epsilon", 1e-5)}, Tensors: []tensor{x, x, {}}}}
	}
	return primitive.Spec{Kind: "matmul", Op: primitive.Operation{Tensors: []tensor{x, Dense("f32", b, 8), {}, Dense("f32", a, 8)}}}
}

// C1, E1: primitives that come and go at a capacity leave no object of the library, cost the
// same at the end as at the beginning, and leave no more memory than the same calls
// without Kiln; nor do devices that are opened and closed. -long makes it a long life.
func TestLives(t *testing.T) {
	if *side != "" {
		live(t)
		return
	}
	if testing.Short() {
		t.Skip("-short")
	}
	need(t, 1)
	kiln, library := alone(t, "kiln"), alone(t, "library")
	const mib = 1 << 20
	for name, l := range map[string]remains{"kiln": kiln, "library": library} {
		t.Logf("%-7s grew by %.1f MiB to %.1f after its first tenth, %.0f us a primitive in the second tenth and %.0f in the last, at most %d objects, %d left, opening added %.1f MiB", name,
			float64(l.Grown)/mib, float64(l.All)/mib, l.Microtenths[0], l.Microtenths[1], l.Most, l.Left, float64(l.Opened)/mib)
		if l.Left != 0 {
			t.Errorf("%s: %d objects of the library are left", name, l.Left)
		}
	}
	const own = 32 * mib // for the caches' own
	if most := library.All + library.All/10 + own; kiln.All > most {
		t.Errorf("%.1f MiB are resident, want at most %.1f", float64(kiln.All)/mib, float64(most)/mib)
	}
	if most := library.Opened + library.All/10; kiln.Opened > most {
		t.Errorf("opening and closing: %.1f MiB more than before, want at most %.1f", float64(kiln.Opened)/mib, float64(most)/mib)
	}
}

func alone(t *testing.T, side string) (l remains) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLives$", "-test.timeout=0", "-side="+side, fmt.Sprintf("-long=%v", *long))
	cmd.Env = append(cmd.Environ(), variable+"="+path())
	said, err := drivertest.Said(cmd)
	if err == nil {
		err = json.Unmarshal([]byte(said), &l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// live makes primitives and devices, and prints what that left.
func live(t *testing.T) {
	rounds, capacity, opens := 2000, 64, 50
	if *long {
		rounds, capacity, opens = 100_000, 1024, 10_000
	}
	l, err := Open(Config{Path: path(), Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	make, end := withoutKiln(t, l, capacity)
	if *side == "kiln" {
		make, end = withKiln(t, l, capacity)
	}
	var said remains
	took := [2][]float64{}
	before := int64(0)
	for i := range rounds {
		if i == rounds/10 {
			before = resident(t)
		}
		began := time.Now()
		make(i)
		if tenth := i * 10 / rounds; tenth == 1 || tenth == 9 {
			took[tenth/9] = append(took[tenth/9], float64(time.Since(began).Nanoseconds())/1e3)
		}
		said.Most = max(said.Most, l.Len())
	}
	said.All = resident(t)
	said.Grown = said.All - before
	for i, list := range took {
		slices.Sort(list)
		said.Microtenths[i] = list[len(list)/2]
	}
	end()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	said.Left = l.Len()
	for i := range opens {
		if i == opens/10 {
			before = resident(t)
		}
		said.Left += openOnce(t)
	}
	said.Opened = resident(t) - before
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("<<%s>>", text)
}

// openOnce opens and closes a device, or a library alone, and gives what is left.
func openOnce(t *testing.T) int64 {
	t.Helper()
	if *side == "kiln" {
		d, err := New(path()).Open(bg, 0)
		if err == nil {
			err = d.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return d.(*device).lib.Len()
	}
	l, err := Open(Config{Path: path(), Workers: 1})
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return l.Len()
}

// withKiln makes them through the artefact cache.
func withKiln(t *testing.T, l *Library, capacity int) (make func(int), end func()) {
	cache, err := artefacts.Open(artefacts.Config{Entries: limit.Of(int64(capacity))})
	if err != nil {
		t.Fatal(err)
	}
	e, err := primitive.Open(primitive.Config{Cache: cache, Library: l, Backend: Name, Identity: l.About().Identity})
	if err != nil {
		t.Fatal(err)
	}
	return func(i int) {
			s := distinct(i)
			lease, o, err := e.Primitive(bg, &s, "")
			if err != nil {
				t.Fatal(err)
			}
			if lease.End(); o.Event != artefacts.Miss {
				t.Fatalf("primitive %d: %v", i, o.Event)
			}
		}, func() {
			if err := cache.Close(bg); err != nil {
				t.Fatal(err)
			}
		}
}

// withoutKiln makes the same calls of the library, and destroys the oldest of so many.
func withoutKiln(t *testing.T, l *Library, capacity int) (make func(int), end func()) {
	type made struct {
		h    handle
		free func()
	}
	var ring []made
	drop := func() {
		l.free(l.c.Free, ring[0].h)
		ring[0].free()
		ring = ring[1:]
	}
	return func(i int) {
			s := distinct(i)
			for impl, err := range l.Implementations(bg, &s) {
				if err != nil {
					t.Fatal(err)
				}
				if !impl.Accepts() {
					continue
				}
				d, err := impl.Describe()
				if err != nil {
					t.Fatal(err)
				}
				h, err := l.make("dnnl_primitive_create", func(h *handle) int32 { return l.c.Make(h, d.Native.(*plan).pd) })
				if err != nil {
					t.Fatal(err)
				}
				ring = append(ring, made{h, d.Free})
				break
			}
			if len(ring) > capacity {
				drop()
			}
		}, func() {
			for len(ring) > 0 {
				drop()
			}
		}
}

// resident is the memory of this process in bytes, less what Go can do without.
func resident(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	var pages int64
	if err == nil {
		pages, err = strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	}
	if err != nil {
		t.Fatal(errors.Join(err))
	}
	return pages * int64(os.Getpagesize())
}
