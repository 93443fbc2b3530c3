package blobstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/trust"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// Store is the persistent store in one directory. Safe for concurrent use.
type Store struct {
	*opened
	brought *gpuexec.Identity // what For was given; nil = Config.Identity says it
}

// For is the same store, for the blobs of one device: they must fit id, whatever
// Config.Identity says of the backend. Nothing is stored or loaded for an id
// without library or build (SPEC P12). Closing it closes the store.
func (s *Store) For(id gpuexec.Identity) *Store { return &Store{s.opened, &id} }

// opened is what all Stores of one opening share.
type opened struct {
	cfg    Config
	off    bool // neither reads nor writes
	main   folder
	bases  []folder
	dir    directory
	leases hostlock.Leases
	marks  hostlock.Marks
	trust  *trust.List
	stats  counters
	writes breaker

	base   context.Context
	cancel context.CancelFunc
	closed atomic.Bool
	life   sync.RWMutex // read-held by every call that works on files

	identities sync.Map // backend -> frame.Identity
	writer     string   // name of this opening's file in uses/
	stopTimers func()

	mu struct {
		sync.Mutex
		uses    uses // since they were taken over by the index
		claims  map[*Claim]struct{}
		synced  map[string]bool // backends whose folder is durable; another map once one may be a new folder
		logged  map[string]bool // kinds of trouble
		swept   time.Time
		unswept map[string][]string // by folder, names that the last sweep has not looked at yet
		flushed bool                // nothing new since uses were written
		hidden  map[string]bool
	}
}

// Open opens the store in a directory, makes it if it is missing, and brings it
// within its capacity. A directory that is not safe to use is ErrRefused, one
// that cannot be used ErrIO, each with its cause. Without a directory or a
// capacity the store is open and off: it reads and writes nothing (SPEC P1).
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults(ctx)
	if err != nil {
		return nil, err
	}
	s := &Store{opened: &opened{cfg: cfg, off: cfg.disabled(), writer: hostlock.Unique(), stopTimers: func() {}}}
	s.base, s.cancel = context.WithCancel(context.Background())
	s.mu.uses, s.mu.claims = uses{}, map[*Claim]struct{}{}
	s.mu.synced, s.mu.logged, s.mu.hidden = map[string]bool{}, map[string]bool{}, map[string]bool{}
	s.mu.unswept = map[string][]string{}
	if s.off {
		return s, nil
	}
	if err := s.open(ctx); err != nil {
		s.cancel()
		var known *fault.Error
		if errors.As(err, &known) || ctx.Err() != nil {
			return nil, err
		}
		return nil, trouble("store: open", cfg.Dir, err)
	}
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	s.main = folder{FS: s.cfg.fs(resolve(s.cfg.Dir))}
	for _, path := range s.cfg.Bases {
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
		base := folder{FS: s.cfg.fs(resolve(path)), base: true}
		if err := checkOwner(base.FS, path, false); err != nil {
			return err
		}
		s.bases = append(s.bases, base)
	}
	if s.cfg.Trust != "" {
		if s.trust, err = trust.Open(s.cfg.Trust); err != nil {
			return err
		}
	}
	s.dir = directory{s: s, mu: make(turnstile, 1), idx: newIndex(s.cfg.Policy), text: unknownSize, journal: journal{fs: s.main.FS}}
	s.leases = hostlock.Leases{FS: s.main.FS, Folder: keyDir, Staging: tmpDir, Period: s.cfg.Lease, Lock: !s.cfg.Shared}
	s.marks = hostlock.Marks{Leases: s.leases}
	s.marks.Folder = markDir
	if !s.cfg.Shared {
		s.dir.lock = hostlock.NewDirectory(s.main.FS, lockDir, s.cfg.Lease)
	}
	if s.cfg.ReadOnly {
		return checkOwner(s.main.FS, s.cfg.Dir, false)
	}
	if err := s.dir.prepare(ctx); err != nil {
		return err
	}
	s.sweep()
	s.startTimers()
	return nil
}

// Close ends the store: claims are given up, calls under way are waited for as
// long as the context lasts, uses are written. Calling it again is harmless.
func (s *Store) Close(ctx context.Context) error {
	s.closed.Store(true)
	s.cancel()
	s.mu.Lock()
	claims := s.mu.claims
	s.mu.claims = map[*Claim]struct{}{}
	s.mu.Unlock()
	for c := range claims {
		c.release()
	}
	done := make(chan error, 1)
	go func() {
		s.life.Lock()
		defer s.life.Unlock()
		done <- s.shutDown()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Store) shutDown() error {
	s.stopTimers()
	if s.off || s.cfg.ReadOnly {
		return nil
	}
	s.flushUses(true)
	s.dir.journal.close() // no call is under way any more
	return nil
}

// enter begins a call that works on files; leave must follow if it is nil.
func (s *Store) enter(op, backend, key string) error {
	if !validBackend(backend) {
		return fault.Invalidf(op, "backend %q: want letters, digits, '-', '_' or '.', and no name that the store itself uses", backend)
	}
	if key == "" {
		return fault.Invalidf(op, "the key is empty")
	}
	if len(key) > LongestKey {
		return fault.Invalidf(op, "the key has %d bytes: want at most %d", len(key), LongestKey)
	}
	return s.begin(op)
}

func (s *Store) begin(op string) error {
	if !s.life.TryRLock() { // Close has it, or waits for it behind a call that may be stuck
		return &fault.Error{Op: op, Err: fault.ErrClosed}
	}
	if s.closed.Load() {
		s.life.RUnlock()
		return &fault.Error{Op: op, Err: fault.ErrClosed}
	}
	return nil
}

func (s *Store) leave() { s.life.RUnlock() }

// isOff reports whether nothing of that backend is read or written, and the
// identity that its blobs must fit.
func (s *Store) isOff(backend string) (frame.Identity, bool) {
	if s.switchedOff(backend) {
		return frame.Identity{}, true
	}
	if s.brought != nil {
		id := frame.Identity(*s.brought)
		return id, !id.Known()
	}
	if id, ok := s.identities.Load(backend); ok {
		id := id.(frame.Identity)
		return id, !id.Known()
	}
	id := frame.Identity(s.cfg.Identity(backend))
	s.identities.Store(backend, id)
	return id, !id.Known()
}

func (s *Store) switchedOff(backend string) bool { return s.off || slices.Contains(s.cfg.Off, backend) }

// Bucket is the name of a key's bucket folder (SPEC P2).
func (s *Store) Bucket(key string) string {
	hash := s.cfg.Hash
	if hash == nil {
		hash = xxhash.Sum64String
	}
	return strconv.FormatUint(hash(key), 10)
}

// capacity in bytes.
func (s *Store) capacity() int64 {
	if n, counted := s.cfg.Capacity.Value(); counted {
		return n
	}
	return math.MaxInt64
}

// largest is the size of the largest entry that is stored.
func (s *Store) largest() int64 { return min(s.capacity(), Largest) }

// degraded counts and logs trouble, one line a kind (SPEC P5).
func (s *Store) degraded(op string, err error) {
	s.stats.reason(fault.Degraded)
	s.logOnce(op, err)
}

func (s *Store) logOnce(op string, err error) {
	k := kind(op, err)
	s.mu.Lock()
	known := s.mu.logged[k]
	s.mu.logged[k] = true
	s.mu.Unlock()
	if !known {
		s.cfg.Logger.Warn("store: going on without", "dir", s.cfg.Dir, "op", op, "error", err)
	}
}

func (s *Store) tell(e Event) { s.cfg.Listen(e) }

// checkOwner refuses a directory that somebody else could write (SPEC P13, P14).
func checkOwner(fsys vfs.FS, path string, create bool) error {
	info, err := fsys.Lstat(".")
	if isGone(err) && create {
		if err = fsys.Mkdir("."); err == nil {
			info, err = fsys.Lstat(".")
		}
	}
	if err != nil {
		return err
	}
	unsafe := func(format string, args ...any) error {
		return &fault.Error{Op: "store: open", Key: path, Err: fmt.Errorf("%w: "+format, append([]any{fault.ErrRefused}, args...)...)}
	}
	user := os.Geteuid()
	switch {
	case !info.Mode.IsDir():
		return fmt.Errorf("%s is no folder", path)
	case info.Mode.Perm()&0o022 != 0:
		return unsafe("others can write it (mode %04o): a stored kernel is code; chmod go-w it", info.Mode.Perm())
	case user > 0 && int(info.Owner) != user && (create || info.Owner != 0):
		return unsafe("it belongs to user %d: a stored kernel is code; use a directory of your own", info.Owner)
	}
	return nil
}

// resolve follows the symbolic links on the way to a directory that may not
// exist yet. Below it none is followed.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolve(parent), filepath.Base(path))
	}
	return path
}
