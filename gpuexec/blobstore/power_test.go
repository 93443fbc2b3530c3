//go:build unix

package blobstore_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

var lossCount = flag.Int("losses", 600, "losses of power in TestPowerLossOfWriters; 10000 is thorough")

// power is a disk that loses power now and then while writers use it.
type power struct {
	t    *testing.T
	seed uint64
	disk *crashfs.FS
	mu   struct {
		sync.Mutex
		rng          *rand.Rand
		ops, losses  int
		wanted       float64         // losses at each operation
		acknowledged map[string]bool // keys whose put with full has returned
	}
}

const powerKeys = 6

// lax reports whether writers after the first write with file.
func (p *power) lax() bool { return p.seed%8 > 3 }

// lose looks at the disk as it would be after a loss of power, sometimes also after
// another one while that was being mended.
func (p *power) lose(string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.ops++
	for left := p.mu.wanted; left > p.mu.rng.Float64(); left-- {
		p.mu.losses++
		p.loseNow()
	}
}

func (p *power) loseNow() {
	keep := []float64{0, 0.5, 0.9, 1}[p.mu.rng.IntN(4)]
	seed := p.mu.rng.Uint64()
	var again *crashfs.FS
	var clone *crashfs.FS
	left := p.mu.rng.IntN(40) // operations until the next loss
	clone = p.disk.Clone(keep, seed, func(string) {
		if left--; left == 0 {
			again = clone.Clone(keep, seed+1, nil)
		}
	})
	p.check(clone, fmt.Sprintf("a loss that keeps %v", keep))
	if again != nil {
		p.check(again, fmt.Sprintf("two losses that keep %v", keep))
	}
}

// check opens what is left: every entry is whole or absent, and what was acknowledged
// is there (SPEC P9, P10).
func (p *power) check(disk *crashfs.FS, after string) {
	cfg := powerConfig(disk, blobstore.Full)
	cfg.Capacity = limit.Of(mib)
	s, err := blobstore.Open(background, cfg)
	if err != nil {
		p.t.Errorf("seed %d: open after %s: %v", p.seed, after, err)
		return
	}
	for i := range powerKeys {
		key := fmt.Sprintf("k%d", i)
		b, miss, err := s.Get(background, backend, key)
		switch {
		case err != nil:
			p.t.Errorf("seed %d: %s after %s: %v", p.seed, key, after, err)
		case miss.None() && string(b.Payload) != string(payload(key, 700)):
			p.t.Errorf("seed %d: a wrong payload for %s after %s", p.seed, key, after)
		case !miss.None() && p.mu.acknowledged[key]:
			p.t.Errorf("seed %d: %s was acknowledged and is gone after %s: %v", p.seed, key, after, miss)
		case !miss.None() && miss.Reason != "absent" && (!p.lax() || miss.Reason != "truncated"): // with file an entry may lack a file
			p.t.Errorf("seed %d: %s is %v after %s: want whole or absent", p.seed, key, miss, after)
		}
	}
	if err := s.Close(background); err != nil {
		p.t.Errorf("seed %d: close after %s: %v", p.seed, after, err)
	}
}

// P9, P10, P18: power is lost at any moment while one to four writers store the same
// few keys. The first writes with full, the others with full or file. Some of the disks
// can sync everything at once.
func TestPowerLossOfWriters(t *testing.T) {
	const seeds = 64
	losses := 0
	for seed := range uint64(seeds) {
		p := &power{t: t, seed: seed}
		p.store() // to count the operations, over which the losses are spread
		p.mu.wanted = float64(*lossCount) / seeds / float64(p.mu.ops)
		p.store()
		losses += p.mu.losses
	}
	t.Logf("%d losses over %d seeds", losses, seeds)
	if losses < *lossCount/2 {
		t.Error("the test has lost its bite")
	}
}

// store lets the writers of a seed store all keys.
func (p *power) store() {
	p.mu.rng, p.mu.acknowledged = rand.New(rand.NewPCG(p.seed, 2)), map[string]bool{}
	p.disk = crashfs.New(p.lose)
	var fsys vfs.FS = p.disk
	if p.seed%2 == 0 {
		fsys = apart{p.disk}
	}
	var wg sync.WaitGroup
	for w := range 1 + p.seed%4 {
		level := blobstore.Full
		if w > 0 && p.lax() {
			level = blobstore.File
		}
		cfg := powerConfig(fsys, level)
		cfg.Capacity = limit.Of(mib)
		s, err := blobstore.Open(background, cfg)
		if err != nil {
			p.t.Fatal(err)
		}
		defer s.Close(background)
		order := rand.New(rand.NewPCG(p.seed, w)).Perm(powerKeys)
		for half := range slices.Chunk(order, powerKeys/2) { // two goroutines of one store share passes
			wg.Go(func() {
				for _, i := range half {
					key := fmt.Sprintf("k%d", i)
					if err := s.Put(background, backend, key, payload(key, 700), 0); err != nil {
						p.t.Errorf("seed %d: put: %v", p.seed, err)
					} else if level == blobstore.Full {
						p.mu.Lock()
						p.mu.acknowledged[key] = true
						p.mu.Unlock()
					}
				}
			})
		}
	}
	wg.Wait()
}
