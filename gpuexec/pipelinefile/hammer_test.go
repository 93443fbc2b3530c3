//go:build unix

package pipelinefile_test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
)

// SPEC V5, V6, V7, C5: everything at once, for the race detector. A pipeline in
// hand is never destroyed and is that of its request.
func TestHammer(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 30
	}
	v, other := open(t), open(t)
	path := filepath.Join(t.TempDir(), "f")
	const shaders = 6
	for i := range shaders {
		v.shader(fmt.Sprint(i), "x")
		other.shader(fmt.Sprint(i), "x")
		other.built(fmt.Sprint(i))
	}
	other.save(path)
	start := make(chan struct{})
	var wg sync.WaitGroup
	worker := func(work func(r *rand.Rand)) {
		seed := rand.Uint64()
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, seed))
			<-start
			for range rounds {
				work(r)
			}
		})
	}
	for range 6 {
		worker(func(r *rand.Rand) {
			req := pipelinefile.Request{Shader: fmt.Sprint(r.IntN(shaders)), Options: r.Uint64N(3), Subgroup: r.Uint32N(2)}
			l, _, err := v.Get(t.Context(), req)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.End()
			p := l.Pipeline().(*fakePipeline)
			if p.gone.Load() || p.module.Shader != req.Shader || p.module.Options != req.Options || p.module.Subgroup != req.Subgroup {
				t.Errorf("asked for %+v, got %+v, gone %v", req, p.module, p.gone.Load())
			}
		})
	}
	worker(func(r *rand.Rand) {
		if r.IntN(4) == 0 {
			v.Clear()
		}
		v.Stats()
	})
	worker(func(r *rand.Rand) { // two sources in turn
		if err := v.Register("0", []byte{byte('x' + r.IntN(2))}); err != nil {
			t.Error(err)
		}
	})
	worker(func(r *rand.Rand) {
		if r.IntN(8) == 0 {
			if l, err := v.Load(t.Context(), path); err != nil || l.Reason != "" {
				t.Error(l, err)
			}
		}
	})
	for _, saver := range []*rig{v, other} {
		worker(func(r *rand.Rand) {
			if r.IntN(16) == 0 {
				if _, err := saver.Save(t.Context(), path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	if n := len(decode(t, path).Entries); n < shaders-1 { // all but the one whose source changed
		t.Errorf("%d entries in the file, want at least %d", n, shaders-1)
	}
}
