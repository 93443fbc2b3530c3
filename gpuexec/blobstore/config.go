package blobstore

import (
	"context"
	"crypto/ed25519"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// Policy says which entries go when the capacity is reached (SPEC P7).
type Policy string

// The policies.
const (
	FIFO Policy = "fifo" // by creation time; the default
	LRU  Policy = "lru"  // by last use, kept over reopening
	Cost Policy = "cost" // by compile time x (uses + 1) per byte
)

// Durability says what survives a power loss (SPEC P10). Whatever it is, a kill
// of the process never leaves half an entry, and damage is always noticed.
type Durability string

// The levels, with what a store of 64 KiB pays for them on a local SSD.
const (
	None Durability = "none" // nothing is synced: what was stored in the last half minute may be gone
	File Durability = "file" // contents are synced, names are not: an entry is whole, gone, or lacks a file, which is a miss and heals; two syncs
	Full Durability = "full" // what Put acknowledged is there; five syncs and more; the default
)

// Signer signs what a store writes (SPEC P15).
type Signer struct {
	ID  string             // of the key, as trust lists name it: 1 to 1024 bytes
	Key ed25519.PrivateKey // the whole key of 64 bytes, not its seed
}

const defaultLease = 10 * time.Second

// Largest is the most bytes that an entry may have, whatever the capacity: what
// one store writes any other may read, and no file takes more memory than this.
const Largest = 1 << 30

// LongestKey is the most bytes that a key may have.
const LongestKey = 1 << 20

// Config of a Store. Dir and Capacity turn it on; the rest has usable zeros.
type Config struct {
	Dir      string      // absolute or relative to the working directory; empty = off
	Capacity limit.Limit // bytes of all entries; not given or 0 = off, unless ReadOnly

	Policy     Policy        // empty = FIFO
	Durability Durability    // empty = Full
	Lease      time.Duration // how long a holder may stand still before it is replaced; 0 = 10 s
	ReadOnly   bool          // writes nothing at all; needs no capacity
	Shared     bool          // the directory lies on a network file system: no file locks, see doc.go

	Off   []string // backends for which the store is switched off
	Bases []string // read-only directories, asked after Dir in this order (SPEC P14)

	// Only is the one backend whose entries Usage, List, Verify, Prune, Export,
	// Import and Merge see; empty = all. It bounds nothing else.
	Only string

	// Identity gives what the blobs of a backend must fit, for calls on a Store that
	// For did not give; it is asked once a backend. nil, or an identity without library or build, means that nothing
	// of that backend is stored or loaded (SPEC P12).
	Identity func(backend string) gpuexec.Identity

	// Trust is the path of a trust list (SPEC P15), which nobody else may be able to
	// write. Empty = every sound entry is trusted. Signer signs what is stored; nil =
	// unsigned.
	Trust  string
	Signer *Signer

	// Factors takes a key apart into named factors, for Explain; one of them may
	// be called "kind". nil = keys are opaque.
	Factors func(backend, key string) map[string]string

	// Aborts tells which backends have drivers that can take the process down on
	// a bad blob; their loads are marked (SPEC P11). nil = none.
	Aborts func(backend string) bool

	Logger *slog.Logger            // nil = silent
	Now    func() time.Time        // for creation and use times, retries and sweeps; nil = time.Now
	Hash   func(key string) uint64 // names buckets; nil = xxhash64, the contract of SPEC P2
	Listen func(Event)             // told what the store did, on the goroutine that did it; nil = nobody

	// After calls a function once that much time has passed by Now, and gives what
	// stops it; nil = time.AfterFunc. Sweeps and the writing of uses hang on it.
	After func(time.Duration, func()) (stop func() bool)

	fs func(root string) vfs.FS // nil = that of vfs.From
}

// Event is one thing that a store did beside answering.
type Event struct {
	Kind    string // "stored", "evicted", "quarantined" or "swept"
	Backend string
	Place   string // folder of the entry below Dir
	Reason  fault.Reason
	Bytes   int64
}

// Validate reports every mistake at once, as fault.ErrInvalid.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.Invalidf("store: config", format, args...))
	}
	if err := c.Capacity.Validate(); err != nil {
		errs = append(errs, &fault.Error{Op: "store: config", Key: "Capacity", Err: err})
	}
	if !slices.Contains([]Policy{"", FIFO, LRU, Cost}, c.Policy) {
		bad("policy %q: want fifo, lru or cost", c.Policy)
	}
	if !slices.Contains([]Durability{"", None, File, Full}, c.Durability) {
		bad("durability %q: want none, file or full", c.Durability)
	}
	if c.Lease < 0 {
		bad("lease %v: want a duration above 0, or 0 for %v", c.Lease, defaultLease)
	}
	backends := slices.Clone(c.Off)
	if c.Only != "" {
		backends = append(backends, c.Only)
	}
	for _, b := range backends {
		if !validBackend(b) {
			bad("backend %q: want letters, digits, '-', '_' or '.', and no name that the store itself uses", b)
		}
	}
	if s := c.Signer; s != nil && (s.ID == "" || len(s.ID) > 1024 || len(s.Key) != ed25519.PrivateKeySize) {
		bad("signer with an id of %d bytes and a key of %d: want an id of 1 to 1024 bytes and an ed25519 private key of %d, not its seed", len(s.ID), len(s.Key), ed25519.PrivateKeySize)
	}
	return errors.Join(errs...)
}

// disabled reports whether the store neither reads nor writes (SPEC P1).
func (c Config) disabled() bool {
	if c.Dir == "" {
		return true
	}
	n, counted := c.Capacity.Value()
	return !c.ReadOnly && !c.Capacity.IsUnlimited() && (!counted || n == 0)
}

func (c Config) withDefaults(ctx context.Context) (Config, error) {
	if c.Policy == "" {
		c.Policy = FIFO
	}
	if c.Durability == "" {
		c.Durability = Full
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.After == nil {
		c.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	if c.Listen == nil {
		c.Listen = func(Event) {}
	}
	if c.Aborts == nil {
		c.Aborts = func(string) bool { return false }
	}
	if c.Identity == nil {
		c.Identity = func(string) gpuexec.Identity { return gpuexec.Identity{} }
	}
	if c.Dir == "" {
		return c, nil
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return c, trouble("store: open", c.Dir, err)
	}
	c.Dir = dir
	if c.fs == nil && !c.disabled() {
		if c.fs, err = vfs.From(ctx); err != nil {
			return c, &fault.Error{Op: "store: open", Key: dir, Err: err}
		}
	}
	return c, nil
}
