//go:build unix

package blobstore_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

var lossCount = flag.Int("losses", 600, "losses of power in TestPowerLossOfWriters; 10000 is thorough")

// power is a disk that loses power now and then while writers use it.
type power struct {
	t      *testing.T
	seed   uint64
	disk   *crashfs.FS
	wrap   func(vfs.FS) vfs.FS // what a store sees of it; nil = all
	most   int64               // capacity
	halves bool                // what goes does so by its files, and so may lack one
	mu     struct {
		sync.Mutex
		rng          *rand.Rand
		ops, losses  int
		wanted       float64         // losses at each operation
		acknowledged map[string]bool // keys whose put with full has returned
		damaged      map[string]bool
	}
}

const powerKeys = 6

// lax reports whether writers after the first write with file.
func (p *power) lax() bool { return p.wrap == nil && p.seed%8 > 3 }

// open opens a store on a disk.
func (p *power) open(disk *crashfs.FS, level blobstore.Durability) (*blobstore.Store, error) {
	var seen vfs.FS = disk
	if p.wrap != nil {
		seen = p.wrap(disk)
	}
	cfg := powerConfig(seen, level)
	cfg.Capacity = limit.Of(p.most)
	return blobstore.Open(background, cfg)
}

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
	s, err := p.open(disk, blobstore.Full)
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
		case !miss.None() && miss.Reason != "absent" && !p.mu.damaged[key] && (!p.lax() || miss.Reason != "truncated"): // with file an entry may lack a file
			p.t.Errorf("seed %d: %s is %v after %s: want whole or absent", p.seed, key, miss, after)
		}
	}
	if size, text, files, err := s.Audit(background); err != nil || size != files || text != files {
		p.t.Errorf("seed %d: accounts of %d and %d bytes, files of %d after %s: %v", p.seed, size, text, files, after, err)
	}
	if u, err := s.Usage(background); err != nil || u.DiskBytes > p.most {
		p.t.Errorf("seed %d: after %s: %+v %v", p.seed, after, u, err)
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
		p := &power{t: t, seed: seed, most: mib}
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

// narrow is a disk on which no folder is made for what is moved away.
type narrow struct{ vfs.FS }

func (n narrow) Mkdir(name string) error {
	if strings.HasPrefix(name, "tmp/") && strings.Contains(name, "+") {
		return &vfs.Fault{Op: "mkdir", Name: name, Err: syscall.ENOSPC}
	}
	return n.FS.Mkdir(name)
}

// P9, P10: power is lost at each operation of a store that evicts, sets aside and prunes entries
// whose folders can be moved, whose files alone can, and which are emptied in their place.
func TestPowerLossOfRemovals(t *testing.T) {
	stuck := func(string) bool { return true }
	for what, wrap := range map[string]func(vfs.FS) vfs.FS{
		"folders": func(f vfs.FS) vfs.FS { return f },
		"files":   func(f vfs.FS) vfs.FS { return &overlay{f, stuck, false} },
		"places":  func(f vfs.FS) vfs.FS { return narrow{&overlay{f, stuck, false}} },
	} {
		t.Run(what, func(t *testing.T) {
			p := &power{t: t, seed: 1, wrap: wrap, most: 3 * small, halves: what != "folders"}
			p.mu.wanted = float64(*lossCount) / 400
			p.mu.rng, p.mu.acknowledged, p.mu.damaged = rand.New(rand.NewPCG(1, 3)), map[string]bool{}, map[string]bool{}
			p.disk = crashfs.New(p.lose)
			p.remove()
			t.Logf("%d losses in %d operations", p.mu.losses, p.mu.ops)
		})
	}
}

// remove stores all keys and removes some.
func (p *power) remove() {
	s, err := p.open(p.disk, blobstore.Full)
	if err != nil {
		p.t.Fatal(err)
	}
	defer s.Close(background)
	goes := func(keys ...string) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, key := range keys {
			p.mu.acknowledged[key] = false
			p.mu.damaged[key] = p.halves
		}
	}
	put := func(key string) {
		if err := s.Put(background, backend, key, payload(key, 700), 0); err != nil {
			p.t.Errorf("put %s: %v", key, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.mu.acknowledged[key] = true
	}
	for _, key := range []string{"k0", "k1", "k2"} {
		put(key)
	}
	goes("k0")
	put("k3")
	goes("k2")
	p.mu.Lock()
	p.mu.damaged["k2"] = true
	p.mu.Unlock()
	f, err := p.disk.Update(backend + "/" + s.Bucket("k2") + "/0/kernel.bin")
	if err == nil {
		_, err = f.WriteAt([]byte("bad"), 40)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		p.t.Fatal(err)
	}
	put("k2")
	goes("k1")
	put("k4")
	goes("k2", "k3", "k4")
	if err := s.Prune(background, small); err != nil {
		p.t.Error(err)
	}
	put("k5")
}
