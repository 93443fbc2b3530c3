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
	"github.com/kiln-cache/kiln/internal/hidden"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/internal/zone"
	"github.com/kiln-cache/kiln/limit"
)

// Policy says which entries are evicted when the capacity is reached (SPEC P7).
type Policy string

// The policies.
const (
	FIFO Policy = "fifo" // the oldest by creation; what a new directory has
	LRU  Policy = "lru"  // the least recently used; uses are kept over restarts
	Cost Policy = "cost" // the lowest compile time x (uses + 1) per byte
)

var policies = []Policy{FIFO, LRU, Cost}

// Durability says what survives a loss of power (SPEC P10). At every level an entry
// survives the end of the process that stored it, however it ends, and damage is
// noticed when the entry is read.
type Durability string

// The levels of durability. Each sync costs from 0.1 ms to some 10 ms, as the disk
// has it.
const (
	None Durability = "none" // no sync: entries of the last half minute may be lost
	File Durability = "file" // two syncs, of the two files: an entry is whole, absent, or lacks a file, which is a miss
	Full Durability = "full" // five syncs, shared by stores that wait together: an entry that Put acknowledged is there; the default
)

// Signer signs each entry that a store writes (SPEC P15).
type Signer struct {
	ID  string             // of the key, as trust lists name it: 1 to 1024 bytes
	Key ed25519.PrivateKey // the whole key of 64 bytes, not its seed of 32
}

const (
	defaultLease = 10 * time.Second
	defaultBuild = 10 * time.Minute
)

// shortestLease is the shortest Config.Lease. A holder shows itself each third of it: a
// shorter one passes holders over that only wait for the disk or the scheduler.
const shortestLease = 50 * time.Millisecond

// Largest is the size of the largest entry in bytes, whatever the capacity. It
// bounds what a reader allocates for one file.
const Largest = 1 << 30

// LongestKey is the length of the longest key in bytes.
const LongestKey = 1 << 20

// Config of a Store. A store with a Dir and a Capacity is on. All other fields may
// be zero.
type Config struct {
	// Dir is the directory, absolute or relative to the working directory; empty
	// turns the store off. Open makes a missing directory with mode 0700. It must
	// belong to this user, and nobody else may be able to write it (SPEC P13).
	Dir string
	// Capacity bounds the bytes of all entries, each of their files rounded up to
	// 4 KiB, which is about what the disk holds. Not given or 0 turns the store off,
	// unless ReadOnly is set.
	//
	// The directory remembers it, and Policy: what the last process to open it was given
	// holds for all that use it.
	Capacity limit.Limit
	// DefaultCapacity says that nobody has chosen Capacity, and DefaultPolicy the same of
	// Policy. They then hold only in a directory that remembers none, and nothing that is
	// there is evicted for such a capacity.
	DefaultCapacity, DefaultPolicy bool
	// KeepFree is the share of the file system that entries leave free, at least 0 and
	// below 1: where others fill the disk, entries are evicted. 0 = there is no such bound.
	KeepFree float64

	Policy     Policy     // empty = that of the directory, else FIFO
	Durability Durability // empty = Full
	// Lease is how long a process may hold the directory's lock, or the right to
	// build a key, without a sign of life. Then the next process goes on. 0 = 10 s; at
	// least 50 ms.
	Lease time.Duration
	// LongestBuild is how long a process may have the right to build a key. Then the
	// build hangs, and another process goes on. 0 = 10 minutes.
	LongestBuild time.Duration

	ReadOnly bool // nothing in the directory is written
	Existing bool // Dir must be a store already: Open makes nothing, and answers fault.ErrNotFound where there is none
	// Shared says that the directory is on a file system without reliable locks, as NFS; see
	// the package comment. The directory remembers it: later openings have it set, too.
	Shared bool

	Off []string // backends of which nothing is stored or loaded
	// Bases are read-only directories, searched after Dir in this order (SPEC P14).
	// One that cannot be used when the store opens is logged, and not searched.
	Bases []string

	// Only names the one backend whose entries Usage, List, Verify, Prune, Export,
	// Import and Merge see; empty = every backend. Other calls ignore it.
	Only string

	// Identity gives the identity that entries of a backend must have, for calls on a
	// Store that For did not give. The store calls it once for each backend, from the
	// first call that needs it. Without it, or where Library or Build is empty, nothing
	// of the backend is stored or loaded (SPEC P12).
	Identity func(backend string) gpuexec.Identity

	// Trust is the path of a trust list (SPEC P15): a JSON file that nobody else may
	// be able to write. Only entries that a key of the list signed are loaded then.
	// Empty = signatures do not matter. The list is read again when it changes.
	//
	//	{"keys": [{"id": "ci-1", "public": "BASE64 of 32 bytes"}], "revoked": ["ci-0"]}
	Trust  string
	Signer *Signer // nil = entries are not signed

	// Factors takes a key apart into named factors, for Explain. A factor "kind"
	// keeps entries of different kinds from being compared. nil = a key is one factor.
	Factors func(backend, key string) map[string]string

	// Aborts tells whether the driver of a backend can end the process when it is
	// given a bad blob. Loads of such a driver are marked (SPEC P11). nil = no driver can;
	// kiln.Open asks the registered backends.
	Aborts func(backend string) bool

	Logger *slog.Logger // nil = silent. Its handler may ask the store
	// Listen is called for each Event, on the goroutine that caused it, perhaps many
	// at once. It may ask the store. nil = nobody listens.
	Listen func(Event)

	Now   func() time.Time                               // clock of creation times, uses, pauses and sweeps; nil = time.Now
	After func(time.Duration, func()) (stop func() bool) // timer on that clock; nil = time.AfterFunc
	Hash  func(key string) uint64                        // names buckets (SPEC P2); nil = xxHash64

	fs   func(root string) vfs.FS // nil = that of vfs.From
	zone *zone.Zone               // of whoever closes the store; nil = nobody in particular
	late bool                     // Capacity and Policy are the directory's when the first Put has succeeded, not from Open on
}

func init() {
	hidden.Field(func(c *Config, z *zone.Zone) { c.zone = z })
	hidden.Field(func(c *Config, late bool) { c.late = late })
}

// Event is a change that a store made to its directory.
type Event struct {
	Kind    string       // "stored", "evicted", "quarantined" or "swept"
	Backend string       // empty if swept
	Place   string       // folder of the entry, or of what was swept, below Dir
	Reason  fault.Reason // why an entry was quarantined; else empty
	Bytes   int64        // size of an entry that was stored or evicted
}

// Validate joins an error for each mistake; each is fault.ErrInvalid.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fault.Invalidf("store: config", format, args...))
	}
	if err := c.Capacity.Validate(); err != nil {
		errs = append(errs, &fault.Error{Op: "store: config", Key: "Capacity", Err: err})
	}
	if c.Policy != "" && !slices.Contains(policies, c.Policy) {
		bad("policy %q: want fifo, lru or cost", c.Policy)
	}
	if !slices.Contains([]Durability{"", None, File, Full}, c.Durability) {
		bad("durability %q: want none, file or full", c.Durability)
	}
	if !(c.KeepFree >= 0 && c.KeepFree < 1) {
		bad("a share of %v to keep free: want 0 or more, and less than 1", c.KeepFree)
	}
	if c.Lease != 0 && c.Lease < shortestLease {
		bad("lease %v: want at least %v, or 0 for %v", c.Lease, shortestLease, defaultLease)
	}
	if c.LongestBuild < 0 {
		bad("longest build %v: want a duration above 0, or 0 for %v", c.LongestBuild, defaultBuild)
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
	if i := slices.Index(c.Bases, ""); i >= 0 {
		bad("Bases[%d] is empty: want a directory", i)
	}
	if s := c.Signer; s != nil && (s.ID == "" || len(s.ID) > 1024 || len(s.Key) != ed25519.PrivateKeySize) {
		bad("signer with an id of %d bytes and a key of %d: want an id of 1 to 1024 bytes and an ed25519 private key of %d, not its seed", len(s.ID), len(s.Key), ed25519.PrivateKeySize)
	}
	return errors.Join(errs...)
}

// disabled reports whether the store neither reads nor writes anything (SPEC P1).
func (c Config) disabled() bool {
	if c.Dir == "" {
		return true
	}
	n, counted := c.Capacity.Value()
	return !c.ReadOnly && !c.Capacity.IsUnlimited() && (!counted || n == 0)
}

func (c Config) withDefaults(ctx context.Context) (Config, error) {
	if c.Durability == "" {
		c.Durability = Full
	}
	if c.Lease == 0 {
		c.Lease = defaultLease
	}
	if c.LongestBuild == 0 {
		c.LongestBuild = defaultBuild
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
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
