//go:build unix

package blobstore_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

var modelRuns = flag.Int("modelruns", 40, "random histories in TestModel")

// history is a random run of a store beside a model of it: a set of keys that must be
// there, and one value that each key may have.
type history struct {
	t       *testing.T
	rng     *rand.Rand
	seed    uint64
	disk    *crashfs.FS
	stores  [2]*blobstore.Store // the second may sync less
	lax     blobstore.Durability
	policy  blobstore.Policy
	room    int64
	now     time.Time
	fault   string // the operation that fails; empty = none
	left    int    // operations until it does
	must    map[string]bool
	entries map[string]bool // that may be there
}

func (h *history) open() {
	h.stores = [2]*blobstore.Store{h.openOne(blobstore.Full), h.openOne(h.lax)}
}

func (h *history) openOne(level blobstore.Durability) *blobstore.Store {
	cfg := powerConfig(nil, level)
	cfg.Capacity, cfg.Policy = limit.Of(h.room), h.policy
	cfg.Now = func() time.Time { return h.now }
	disk := h.disk
	blobstore.SetFS(&cfg, func(string) vfs.FS {
		return vfs.Watch(disk, func(op string) error {
			if op == h.fault {
				if h.left--; h.left < 0 {
					return syscall.EIO
				}
			}
			return nil
		})
	})
	s, err := blobstore.Open(background, cfg)
	if err != nil {
		h.t.Fatalf("seed %d: open: %v", h.seed, err)
	}
	return s
}

func (h *history) close() error {
	return errors.Join(h.stores[0].Close(background), h.stores[1].Close(background))
}

func value(key string) []byte { return payload(key, 100*(1+len(key)%3)) }

// step does one random thing.
func (h *history) step() string {
	key := strings.Repeat("k", 1+h.rng.IntN(12))
	which := h.rng.IntN(2)
	s := h.stores[which]
	switch n := h.rng.IntN(20); {
	case n < 9:
		err := s.Put(background, backend, key, value(key), time.Duration(h.rng.IntN(100)))
		h.entries[key] = true
		if err == nil && (which == 0 || h.lax == blobstore.Full) {
			h.must[key] = true
		}
		return fmt.Sprint("put ", which, len(key), " ", err == nil)
	case n < 13:
		h.look(s, key)
		return fmt.Sprint("get ", which, len(key))
	case n == 13: // what is evicted is known from what is left
		bytes := int64(h.rng.IntN(8)) * small
		if s.Prune(background, bytes) == nil {
			h.must = map[string]bool{}
		}
		return fmt.Sprint("prune ", bytes)
	case n == 14:
		h.fault, h.left = []string{"write", "rename", "sync", "syncdir", "mkdir", "open", "read"}[h.rng.IntN(7)], h.rng.IntN(6)
		return fmt.Sprint("fault ", h.fault, " ", h.left)
	case n == 15:
		h.fault = ""
		h.now = h.now.Add(10 * time.Minute)
		if err := s.Prune(background, h.room); err != nil { // a store that failed midway may have left too much
			h.t.Errorf("seed %d: prune: %v", h.seed, err)
		}
		return "heal"
	case n < 18:
		h.fault = ""
		if err := h.close(); err != nil {
			h.t.Errorf("seed %d: close: %v", h.seed, err)
		}
		h.policy = []blobstore.Policy{"", blobstore.FIFO, blobstore.LRU, blobstore.Cost}[h.rng.IntN(4)]
		h.open()
		return "reopen"
	}
	left := h.disk.Clone([]float64{0, 0.5, 1}[h.rng.IntN(3)], h.rng.Uint64(), nil)
	h.fault = ""
	_ = h.close() // of the processes that lost their disk
	h.disk = left
	h.open()
	return "power loss"
}

// look reads a key: the value is right, and one that must be there is, unless its read
// or the eviction of what came later may have taken it.
func (h *history) look(s *blobstore.Store, key string) {
	b, miss, err := s.Get(background, backend, key)
	switch {
	case err != nil:
		h.t.Errorf("seed %d: get: %v", h.seed, err)
	case miss.None() && (!h.entries[key] || string(b.Payload) != string(value(key))):
		h.t.Errorf("seed %d: %q for %s", h.seed, b.Payload, key)
	case !miss.None() && h.must[key] && h.room >= 12*small && h.fault == "":
		h.t.Errorf("seed %d: %s was acknowledged and is gone: %v", h.seed, key, miss)
	}
}

// P4, P5, P7, P9, P10: two stores of one directory: random settings, calls, faults, openings and losses of power:
// no value is wrong, what was acknowledged stays unless it had to go, the capacity holds
// and the accounts are right whenever nothing fails.
func TestModel(t *testing.T) {
	for seed := range uint64(*modelRuns) {
		h := &history{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 3)), disk: crashfs.New(nil), now: time.Now(),
			must: map[string]bool{}, entries: map[string]bool{}}
		h.lax = []blobstore.Durability{blobstore.None, blobstore.File, blobstore.Full}[h.rng.IntN(3)]
		h.room = []int64{3 * small, 8 * small, 12 * small, mib}[h.rng.IntN(4)]
		h.open()
		var steps []string
		for range 60 {
			steps = append(steps, h.step())
			if h.fault != "" {
				continue
			}
			s := h.stores[h.rng.IntN(2)]
			u, err := s.Usage(background)
			size, text, disk, e := s.Audit(background)
			if errors.Join(err, e) != nil || u.DiskBytes > h.room || size != disk || text != disk {
				t.Fatalf("seed %d: %d of %d bytes, accounts %d %d %d, %v after %q", seed, u.DiskBytes, h.room, size, text, disk, errors.Join(err, e), steps)
			}
		}
		for key := range h.must {
			h.look(h.stores[0], key)
		}
		if t.Failed() {
			t.Fatalf("seed %d: %q", seed, steps)
		}
		if err := h.close(); err != nil {
			t.Errorf("seed %d: close: %v", seed, err)
		}
	}
}
