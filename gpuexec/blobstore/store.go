package blobstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/trust"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/internal/zone"
)

// Store is the persistent store in one directory. It is safe for concurrent use, by
// any number of processes too.
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
	cfg      Config
	off      bool   // nothing is read or written
	sealed   bool   // the directory could not be written when the store was opened
	home     string // the directory without links in its path
	main     folder
	bases    []folder
	dir      directory
	leases   hostlock.Leases
	marks    hostlock.Marks
	owners   hostlock.Owners
	trust    *trust.List
	stats    counters
	writes   breaker
	commits  commits
	refusals refusals
	ofBases  []refusals // theirs
	settings atomic.Pointer[settings]

	mappedBytes atomic.Int64 // of data that is mapped or about to be: see roomToMap

	zone   zone.Zone // Listen and the handler of the log, which Close waits for
	base   context.Context
	cancel context.CancelFunc
	closed atomic.Bool
	life   sync.RWMutex // read-held by every call that works on files
	ended  bool         // no call works on files any more; life guards it
	users  atomic.Int64 // of the directory and the bases: this opening, claims, and who is in a driver

	identities sync.Map // backend -> frame.Identity
	writer     string   // name of this opening's files in uses/ and lease/owner/
	stopTimers func()

	mu struct {
		sync.Mutex
		uses    uses  // since they were taken over by the index
		seq     int64 // the latest number that was given to one, or was seen
		claims  map[*Claim]struct{}
		synced  map[string]rootFolder
		durable map[version]bool // those that this process has synced
		logged  map[string]bool  // kinds of problems
		held    bool             // the fields of dir are
		untold  []func()         // what the log is to be told when they are free
		swept   time.Time
		unswept map[string][]string // by folder: names that the last sweep has listed and not looked at
		trash   []string            // folders of tmp/ that could not be removed
		flushed bool                // no use was noted since uses were written
		hidden  map[string]bool
		stuck   map[string]outline // bad entries that could not be set aside, by place
	}
}

// Open opens the store in a directory, makes the directory if it is missing, and
// evicts what exceeds the capacity. A store that can be read and not written is opened
// as with Config.ReadOnly, and every Put answers degraded. Without a directory or a
// capacity the store is open and off: it reads and writes nothing (SPEC P1).
//
// The error is fault.ErrInvalid for a bad Config, fault.ErrRefused for a directory
// that another user owns or can write, for one that is no store and has files in a
// folder that a store clears, and with Config.Shared for one that processes without it
// have open, fault.ErrIO for one that cannot be used,
// fault.ErrNotFound for one that is no store though Config.Existing is set,
// fault.ErrUnsupported on a system that has no store, or the context's.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults(ctx)
	if err != nil {
		return nil, err
	}
	s := &Store{opened: &opened{cfg: cfg, off: cfg.disabled(), writer: hostlock.Unique(), stopTimers: func() {}}}
	s.zone.Up = cfg.zone
	s.cfg.Logger = guard.Logger(cfg.Logger, s.zone.Lend(func(fn func()) { go fn() }))
	s.base, s.cancel = context.WithCancel(context.Background())
	s.commits.running = make(turnstile, 1)
	s.mu.uses, s.mu.claims = uses{}, map[*Claim]struct{}{}
	s.mu.synced, s.mu.logged, s.mu.hidden = map[string]rootFolder{}, map[string]bool{}, map[string]bool{}
	s.mu.unswept, s.mu.durable, s.mu.stuck = map[string][]string{}, map[version]bool{}, map[string]outline{}
	if s.off {
		return s, nil
	}
	s.users.Store(1)
	if err := s.open(ctx); err != nil {
		s.cancel()
		s.letGo()
		var known *fault.Error
		if errors.As(err, &known) || ctx.Err() != nil {
			return nil, err
		}
		return nil, trouble("store: open", cfg.Dir, err)
	}
	s.readRefused()
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	s.home = resolve(s.cfg.Dir)
	s.main = folder{FS: s.cfg.fs(s.home)}
	s.openBases()
	s.ofBases = make([]refusals, len(s.bases))
	if s.cfg.Trust != "" {
		if s.trust, err = trust.Open(s.cfg.Trust); err != nil {
			return err
		}
	}
	s.cfg.Shared = s.cfg.Shared || s.main.isShared()
	s.obey(settings{}, 0)
	s.dir = directory{s: s, mu: make(turnstile, 1), idx: newIndex(s.policy()), text: unknownSize, chance: rand.Int64(), waits: s.cfg.late, journal: journal{fs: s.main.FS}}
	s.leases = hostlock.Leases{FS: s.main.FS, Folder: keyDir, Staging: tmpDir, Period: s.cfg.Lease, Lock: !s.cfg.Shared}
	s.marks = hostlock.Marks{Leases: s.leases}
	s.leases.Most = s.cfg.LongestBuild
	s.marks.Folder = markDir
	s.owners = hostlock.Owners{FS: s.main.FS, Folder: ownerDir}
	if !s.cfg.Shared {
		s.dir.lock = hostlock.NewDirectory(s.main.FS, lockDir, s.cfg.Lease)
	}
	if s.cfg.Existing {
		if err := checkOwner(s.main.FS, s.cfg.Dir, false); err != nil && !isGone(err) {
			return err
		}
		if !s.main.isStore() {
			return &fault.Error{Op: "store: open", Key: s.cfg.Dir, Err: fmt.Errorf("%w: this is no directory of a store", fault.ErrNotFound)}
		}
	}
	if s.cfg.ReadOnly {
		s.obey(s.remembered(), 0)
		return checkOwner(s.main.FS, s.cfg.Dir, false)
	}
	if err := s.dir.prepare(ctx); err != nil {
		return s.readOnly(err)
	}
	s.maybeSweep()
	s.startTimers()
	return nil
}

// openBases opens the bases. One that cannot be used is told, and left out for good:
// who makes it later is unknown. The rest serves (SPEC P14).
func (s *Store) openBases() {
	for _, path := range s.cfg.Bases {
		absolute, err := filepath.Abs(path)
		if err == nil {
			base := folder{FS: s.cfg.fs(resolve(absolute)), base: true}
			if err = checkOwner(base.FS, path, false); err == nil {
				_, err = base.ReadDir(".")
			}
			if err == nil {
				s.bases = append(s.bases, base)
				continue
			}
			_ = base.Close() // it was only looked at
		}
		s.degraded("open the base "+path, err)
	}
}

// readOnly goes on with a store that can be read and not written, as one on a read-only
// mount or in a layer of an image (SPEC P16). cause is why it cannot be written.
func (s *Store) readOnly(cause error) error {
	if checkOwner(s.main.FS, s.cfg.Dir, false) != nil || !s.main.isStore() {
		return cause
	}
	if errors.Is(cause, fault.ErrRefused) {
		return fmt.Errorf("%w; set Config.ReadOnly to load from it", cause)
	}
	if !errors.Is(cause, syscall.EROFS) && !errors.Is(cause, fs.ErrPermission) {
		return cause
	}
	s.cfg.ReadOnly, s.sealed = true, true
	s.obey(s.remembered(), 0)
	s.degraded("open for writing", cause)
	return nil
}

// Close ends the store. It releases all claims, waits for the calls that are in
// progress, and writes the uses. If the context ends first, its error is returned
// and the rest goes on in the background. Called by Config.Listen, or by the handler of
// the log, it does not wait for itself, but answers fault.ErrCycle at once; the closing
// goes on. Later calls of the store answer fault.ErrClosed. Close may be called again.
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
		guard.Guard(s.shutDown, func(err error) { done <- err })
	}()
	if s.zone.Here() {
		return &fault.Error{Op: "store: close", Err: fault.ErrCycle}
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return guard.Ended(ctx)
	}
}

func (s *Store) shutDown() error {
	s.stopTimers()
	if s.off || s.ended {
		return nil
	}
	s.ended = true
	if !s.cfg.ReadOnly {
		if s.dir.owes {
			s.dir.repay(context.Background()) // that context does not end
		}
		s.boundUses()
		s.flushUses(true)
		s.dir.saveLast()
	}
	s.letGo()
	return nil
}

// letGo gives up what is open, when no call is under way.
func (s *Store) letGo() {
	if draft := s.dir.draft; draft != nil { // and its change has failed
		_ = s.main.Remove(draft.name) // the next sweep removes what is left
	}
	if half := s.refusals.half; half != nil {
		_ = s.main.Remove(half.name) // likewise
	}
	s.dir.journal.close()
	s.dir.forgetRest()
	s.dir.disown()
	for _, f := range s.mu.synced { // no call is under way
		_ = f.file.Close() // it was only held
	}
	s.drop()
}

// hold keeps the directory and the bases open until drop, beyond the end of the store.
func (s *Store) hold() { s.users.Add(1) }

func (s *Store) drop() {
	if s.users.Add(-1) > 0 {
		return
	}
	for _, f := range append(s.bases, s.main) {
		_ = f.Close() // it was only held
	}
}

// enter begins a call about a key. Without an error, leave must follow.
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

// isOff gives the identity that blobs of a backend must fit, and reports whether
// nothing of the backend is read or written.
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

// Bucket gives the name of the folder in which entries of a key lie (SPEC P2): the
// hash of the key, in decimal.
func (s *Store) Bucket(key string) string {
	hash := s.cfg.Hash
	if hash == nil {
		hash = xxhash.Sum64String
	}
	return strconv.FormatUint(hash(key), 10)
}

// largest is the size of the largest entry that is stored.
func (s *Store) largest() int64 { return min(s.capacity(), Largest) }

// degraded counts a problem, and logs the first of its kind (SPEC P5).
func (s *Store) degraded(op string, err error) {
	s.stats.reason(fault.Degraded)
	s.logOnce(op, err)
}

func (s *Store) logOnce(op string, err error) {
	k := kind(op, err)
	tell := func() { s.cfg.Logger.Warn("store: going on without", "dir", s.cfg.Dir, "op", op, "error", err) }
	s.mu.Lock()
	known, held := s.mu.logged[k], s.mu.held
	s.mu.logged[k] = true
	if held && !known {
		s.mu.untold = append(s.mu.untold, tell)
	}
	s.mu.Unlock()
	if !held && !known {
		tell()
	}
}

func (s *Store) tell(e Event) {
	if s.cfg.Listen != nil {
		s.zone.Run(func() { s.cfg.Listen(e) })
	}
}

// checkOwner refuses a directory that another user owns or can write (SPEC P13,
// P14). With create it makes a missing one.
func checkOwner(fsys vfs.FS, path string, create bool) error {
	info, err := fsys.Lstat(".")
	if isGone(err) && create {
		if err = fsys.MakeRoot(func(owner uint32) bool { return vfs.Believes(env.Process(), owner) }); err == nil {
			info, err = fsys.Lstat(".")
		}
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return &fs.PathError{Op: at.Op, Path: path, Err: at.Err} // else it says "."
	}
	if err != nil {
		return err
	}
	unsafe := func(format string, args ...any) error {
		return &fault.Error{Op: "store: open", Key: path, Err: fmt.Errorf("%w: "+format, append([]any{fault.ErrRefused}, args...)...)}
	}
	switch {
	case !info.Mode.IsDir():
		return fmt.Errorf("%s is no folder", path)
	case info.Mode.Perm()&0o022 != 0:
		return unsafe("others can write it (mode %04o): a stored kernel is code; chmod go-w it", info.Mode.Perm())
	case !vfs.Believes(env.Process(), info.Owner) || create && info.Owner == 0 && os.Geteuid() != 0:
		return unsafe("it belongs to user %d: a stored kernel is code; use a directory of your own", info.Owner)
	}
	return nil
}

// resolve follows the symbolic links in the path of a directory, which may not
// exist yet. Below the directory no link is followed.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	if parent := filepath.Dir(path); parent != path {
		return filepath.Join(resolve(parent), filepath.Base(path))
	}
	return path
}
