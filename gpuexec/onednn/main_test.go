package onednn

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/limit"
)

var bg = context.Background()

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// variable names the library of a test process: one process has one version.
const variable = "KILN_ONEDNN_LIBRARY"

// candidates are the libraries that `make fetch-onednn` and Debian bring, the newest first.
var candidates = []string{"../../.cache/onednn-3.13/libdnnl.so.3", "../../.cache/onednn-3.2/libdnnl.so.3", "libdnnl.so.2"}

func path() string {
	if p, set := env.Process()(variable); set {
		return p
	}
	for _, c := range candidates {
		if p, err := filepath.Abs(c); err == nil {
			if _, err := os.Stat(p); err == nil {
				return p
			}
		}
	}
	return ""
}

// Every test of this package runs with every version that is here, each in a process of
// its own.
func TestEveryVersion(t *testing.T) {
	if _, set := env.Process()(variable); set {
		t.Skip("this is the process of one version")
	}
	if testing.Short() {
		t.Skip("-short")
	}
	mine, ran := path(), 0
	for _, c := range candidates {
		name := c
		if filepath.Dir(c) != "." {
			name, _ = filepath.Abs(c)
			if _, err := os.Stat(name); err != nil {
				t.Logf("LEFT OUT: %s is not here: make fetch-onednn", c)
				continue
			}
		}
		if name == mine {
			continue
		}
		ran++
		t.Run(filepath.Base(filepath.Dir(name))+"/"+filepath.Base(name), func(t *testing.T) {
			timeout := time.Duration(0) // none
			if deadline, bounded := t.Deadline(); bounded {
				timeout = max(time.Minute, time.Until(deadline)-10*time.Second) // it says where it stands before this process does
			}
			cmd := exec.Command(os.Args[0], "-test.count=1", "-test.timeout="+timeout.String())
			cmd.Env = append(cmd.Environ(), variable+"="+name)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	t.Logf("with %s and %d others", mine, ran)
}

// need opens the library of this process, or skips, with what to install.
func need(t testing.TB, workers int) *Library {
	t.Helper()
	l, err := Open(Config{Path: path(), Workers: workers})
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if n := l.Len(); n != 0 {
			t.Errorf("%d objects of the library are left", n)
		}
	})
	return l
}

// rig is a library with an engine and a cache.
type rig struct {
	testing.TB
	*Library
	*primitive.Engine
	cache *artefacts.Cache
}

func open1(t testing.TB, entries limit.Limit) *rig {
	t.Helper()
	l := need(t, 0)
	cache, err := artefacts.Open(artefacts.Config{Entries: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cache.Close(bg); err != nil {
			t.Error(err)
		}
	})
	e, err := primitive.Open(primitive.Config{Cache: cache, Library: l, Backend: Name, Identity: l.About().Identity})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, l, e, cache}
}

// kernel gives the primitive of a request.
func (r *rig) kernel(s primitive.Spec) *primitive.Primitive {
	r.Helper()
	lease, _, err := r.Primitive(bg, &s, "")
	if err != nil {
		r.Fatalf("%s %s %s: %v", s.Kind, s.Op.Direction, s.Op.Algorithm, err)
	}
	r.Cleanup(lease.End)
	return lease.Primitive()
}

func (r *rig) memory(t primitive.Tensor) *Memory {
	r.Helper()
	m, err := r.NewMemory(t)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(m.Release)
	return m
}

// filled is memory with numbers between -1 and 1, always the same ones.
func (r *rig) filled(seed uint64, t primitive.Tensor) *Memory {
	r.Helper()
	m := r.memory(t)
	random := rand.New(rand.NewPCG(seed, 1))
	for i := range Of[float32](m) {
		Of[float32](m)[i] = 2*random.Float32() - 1
	}
	return m
}

func (r *rig) run(p *primitive.Primitive, args ...Arg) {
	r.Helper()
	if err := r.Execute(bg, p, args...); err != nil {
		r.Fatal(err)
	}
}

// is3 tells whether the library is of 3.x.
func (r *rig) is3() bool { _, ok := r.b.(*table3); return ok }

// near compares with numbers that were computed in float64.
func near(t testing.TB, what string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d numbers, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= tolerance*(1+math.Abs(w))) {
			t.Fatalf("%s: number %d is %v, want %v", what, i, got[i], w)
		}
	}
}

func wide(list []float32) []float64 {
	out := make([]float64, len(list))
	for i, v := range list {
		out[i] = float64(v)
	}
	return out
}

// product is a times b in float64, m x k by k x n.
func product(a, b []float32, m, k, n int) []float64 {
	out := make([]float64, m*n)
	for i := range m {
		for j := range n {
			for x := range k {
				out[i*n+j] += float64(a[i*k+x]) * float64(b[x*n+j])
			}
		}
	}
	return out
}
