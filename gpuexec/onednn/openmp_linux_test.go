//go:build linux && (amd64 || arm64)

package onednn

import (
	"bytes"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
	"github.com/kiln-cache/kiln/limit"
)

// E5: a thousand callers, once on Go's threads and once each on a thread of its own: the
// OpenMP of the process is found and not doubled, an execution has one thread of it, and the
// threads of the process are those of Go, however many a busy machine makes of these. libgomp
// keeps a pool for each thread that ever called it, which with 3 threads would be 2,000 more.
func TestThousandCallers(t *testing.T) {
	switch {
	case is("first"): // OpenMP was here first, with 3 threads
		if _, err := dlopen("libgomp.so.1"); err != nil {
			t.Skip(err)
		}
	case !is("fresh"):
		need(t, 1)
		for _, what := range []string{"fresh", "first"} {
			t.Log(child(t, "TestThousandCallers", what, "OMP_NUM_THREADS=3"))
		}
		return
	}
	r := open1(t, limit.Limit{})
	var found []string
	for _, m := range dl.Mappings() {
		if strings.HasPrefix(filepath.Base(m.Path), "libgomp") {
			found = append(found, m.Path)
		}
	}
	if r.About().Runtime != "omp" {
		t.Skip("a library without OpenMP:", r.About().Runtime)
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) != 1 || strings.Contains(r.About().OpenMP, "more than one") {
		t.Fatalf("%v, and About says %q: want one OpenMP", found, r.About().OpenMP)
	}
	var omp struct {
		Most func() int32 `c:"omp_get_max_threads"`
	}
	if gomp, err := dlopen(found[0]); err != nil || bind(gomp, &omp) != nil {
		t.Fatal(err)
	}
	const callers = 1000
	square := Dense("f32", 128, 128)
	src, want := r.filled(1, square), r.memory(square)
	p := r.kernel(spec("eltwise", "inference", "tanh", nil, square, square))
	r.run(p, Arg{Src, src}, Arg{Dst, want})
	var own []*Memory
	for range callers {
		own = append(own, r.memory(square))
	}
	before, _ := notGo(t)
	for _, locked := range []bool{false, true} {
		var done, ended sync.WaitGroup
		leave := make(chan struct{})
		done.Add(callers)
		for i := range callers {
			ended.Go(func() {
				if locked {
					runtime.LockOSThread() // until it ends, and the thread with it
				}
				clear(own[i].Bytes())
				if err := r.Execute(bg, p, Arg{Src, src}, Arg{Dst, own[i]}); err != nil || !bytes.Equal(own[i].Bytes(), want.Bytes()) {
					t.Errorf("caller %d: %v, or a wrong result", i, err)
				}
				if n := omp.Most(); locked && n != 1 {
					t.Errorf("caller %d: %d threads of OpenMP, want 1", i, n)
				}
				done.Done()
				<-leave
			})
		}
		done.Wait()
		n, all := notGo(t)
		close(leave)
		ended.Wait()
		t.Logf("each on its own thread: %v; %d threads, %d of them not Go's, %d before", locked, all, n, before)
		if n > before {
			t.Errorf("%d threads that are not Go's, want %d as before", n, before)
		}
	}
}

// notGo is how many threads of the process Go's scheduler has not made, and how many there are.
func notGo(t *testing.T) (foreign, all int) {
	all = threads(t)
	return all - pprof.Lookup("threadcreate").Count(), all
}
