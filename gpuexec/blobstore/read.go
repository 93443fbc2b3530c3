package blobstore

import (
	"context"
	"crypto/ed25519"
	"errors"
	"io/fs"
	"math"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Blob is a blob that was read from a store, verified, and found to fit.
type Blob struct {
	Payload []byte        // a copy that belongs to the caller; it may be empty
	Cost    time.Duration // the time that compiling it took
	Created time.Time     // by the clock of the process that stored it
	Signer  string        // id of the key that signed it; empty = unsigned
	Place   string        // its folder, below the root of the store or of a base

	digest   [32]byte
	verified ed25519.PublicKey // with this key; nil = there is no trust list
	layer    int               // 0 = the directory itself, then the bases
}

// Get reads the blob of a key, from the disk each time (SPEC P6). A Miss that is not
// zero says why there is none; a problem with files is a Miss too. The error is
// fault.ErrInvalid for a bad key or backend, fault.ErrClosed or the context's.
func (s *Store) Get(ctx context.Context, backend, key string) (Blob, Miss, error) {
	return s.get(ctx, backend, key, false, nil)
}

// get is Get. With again it belongs to a call whose miss was counted and logged. The file of
// the blob is mapped if there is a mapping.
func (s *Store) get(ctx context.Context, backend, key string, again bool, m *mapping) (Blob, Miss, error) {
	const op = "store: get"
	if err := s.enter(op, backend, key); err != nil {
		return Blob{}, Miss{}, err
	}
	defer s.leave()
	if err := ctx.Err(); err != nil {
		return Blob{}, Miss{}, err
	}
	present, off := s.isOff(backend)
	if off {
		s.stats.reason(fault.Disabled)
		return Blob{}, Miss{Reason: fault.Disabled}, nil
	}
	f := s.findMapped(backend, key, present, m)
	if f.err != nil {
		s.logOnce("read", f.err)
	}
	if len(f.bad) > 0 {
		ctx, cancel := context.WithTimeout(guard.Context(ctx), patience)
		s.setAside(ctx, f)
		cancel()
	}
	if f.hit {
		s.stats.hits.Add(1)
		s.used(f.blob)
		return f.blob, Miss{}, nil
	}
	miss := f.miss()
	if again {
		return Blob{}, miss, nil
	}
	s.stats.reason(miss.Reason)
	if err := s.trust.Err(); err != nil { // until the list can be read again nothing is trusted
		s.logOnce("trust", err)
	}
	if f.avoidable() {
		s.stats.avoidable.Add(1)
		s.cfg.Logger.Info("store: a miss that was avoidable: an entry of this key does not fit", "backend", backend,
			"key", fault.Printable(key), "reason", miss.Reason, "field", miss.Field, "differs", f.nearest.misfits)
	}
	return Blob{}, miss, nil
}

// patience is how long a request waits for a process that stands still with the lock.
const patience = time.Second

// finding is the result of a search for a key in all layers.
type finding struct {
	hit     bool
	blob    Blob
	nearest *misfit // the sound entry that differs least
	bad     []flawed
	barred  []string   // places in the directory itself whose files this user may not read
	others  bool       // the bucket has entries of other keys
	kin     [][]string // for each sound entry of this key and identity in the directory that cannot be used: what it requires
	err     error      // a problem with a file
	mapping *mapping   // of the files that are read; nil = they are not mapped
}

// misfit is a sound entry of the key that cannot be used.
type misfit struct {
	place   string
	layer   int
	entry   frame.Entry
	misfits []string
	miss    Miss
}

// flawed is a damaged entry.
type flawed struct {
	layer int
	place string
	miss  Miss
	seen  outline // when it was bad, or zero
	gone  bool    // set aside
}

// miss picks the one reason that is reported (SPEC P4, R1).
func (f *finding) miss() Miss {
	switch {
	case f.err != nil:
		return degradedBy(f.err)
	case len(f.bad) > 0:
		return f.bad[0].miss
	case f.nearest != nil:
		return f.nearest.miss
	case f.others:
		return Miss{Reason: fault.KeyCollision}
	}
	return Miss{Reason: fault.Absent}
}

// avoidable reports whether the key has a sound entry that does not fit (SPEC R2).
func (f *finding) avoidable() bool { return f.nearest != nil && f.err == nil && len(f.bad) == 0 }

// find looks for an entry that fits, in all layers.
func (s *Store) find(backend, key string, present frame.Identity) *finding {
	return s.findMapped(backend, key, present, nil)
}

func (s *Store) findMapped(backend, key string, present frame.Identity, m *mapping) *finding {
	f := &finding{mapping: m}
	bucket := backend + "/" + s.Bucket(key)
	for again := 0; ; again++ {
		for layer := range len(s.bases) + 1 {
			if s.findIn(f, layer, bucket, key, present); f.hit && s.trust == nil {
				return f
			}
		}
		if !errors.Is(f.err, syscall.ESTALE) || again == 3 { // a network file system has lost a file handle
			return f
		}
		*f = finding{mapping: m}
	}
}

func (s *Store) layer(n int) folder {
	if n == 0 {
		return s.main
	}
	return s.bases[n-1]
}

func (s *Store) findIn(f *finding, layer int, bucket, key string, present frame.Identity) {
	l := s.layer(layer)
	slots, err := l.slots(bucket)
	if err != nil {
		if !isGone(err) && !isForeign(err) {
			f.err = err
		}
		return
	}
	for _, slot := range slots {
		place := bucket + "/" + slot.name
		if !slot.ours || f.hit && !f.precededBy(l, place) || layer > 0 && s.isHidden(l, place) {
			continue
		}
		e, verdict := s.readMapped(l, place, key, f.mapping)
		switch verdict.kind {
		case otherKey:
			f.others = true
		case damaged:
			f.bad = append(f.bad, flawed{layer: layer, place: place, miss: verdict.miss})
		case unreadable:
			f.err = verdict.err
			if layer == 0 && errors.Is(verdict.err, fs.ErrPermission) {
				f.barred = append(f.barred, place)
			}
		case sound:
			if s.isRefusedIn(layer, e.Digest) {
				continue
			}
			if s.judge(f, layer, place, e, verdict.miss, present); f.hit && s.trust == nil {
				return
			}
		}
	}
}

// precededBy reports whether an entry seems to be later than what was found. If it is, and
// signed as well, it is the one that is taken: an earlier one replaces none (SPEC P15).
func (f *finding) precededBy(l folder, place string) bool {
	r := record{place: place}
	l.meta(&r)
	return r.created > f.blob.Created.UnixNano()
}

// judge decides whether a sound entry can be used.
func (s *Store) judge(f *finding, layer int, place string, e frame.Entry, miss Miss, present frame.Identity) {
	m := misfit{place: place, layer: layer, entry: e, miss: miss}
	var verified ed25519.PublicKey
	if miss.None() {
		var flaw frame.Flaw
		verified, flaw = s.trust.Judge(&e)
		m.miss = Miss(flaw)
	}
	if m.miss.None() {
		if m.misfits = e.Misfits(present); len(m.misfits) == 0 {
			if f.hit && !e.Created.After(f.blob.Created) {
				return
			}
			f.hit = true
			f.mapping.choose(&e)
			f.blob = Blob{Payload: e.Payload, Cost: e.Cost, Created: e.Created, Signer: e.Signer, Place: place, digest: e.Digest, verified: verified, layer: layer}
			return
		}
		m.miss = Miss(frame.Misfit(m.misfits[0]))
	} else {
		m.misfits = []string{m.miss.Field}
	}
	own := present
	own.ISA = e.Requires
	if layer == 0 && miss.None() && len(e.Misfits(own)) == 0 {
		f.kin = append(f.kin, e.Requires)
	}
	if n := f.nearest; n == nil || m.distance() < n.distance() || m.distance() == n.distance() && m.entry.Created.After(n.entry.Created) {
		f.nearest = &m
	}
}

// distance is the number of factors that differ. An entry whose format or signature
// is not accepted is the farthest, since nothing else of it is believed.
func (m *misfit) distance() int {
	if m.miss.Field == "format" || m.miss.Field == "signature" {
		return math.MaxInt
	}
	return len(m.misfits)
}

type verdictKind uint8

const (
	vanished   verdictKind = iota // it was removed, or never was an entry
	otherKey                      // it is of another key with the same hash
	damaged                       // see miss
	unreadable                    // see err
	sound                         // it is whole; miss says whether its format is a foreign one
)

type verdict struct {
	kind   verdictKind
	miss   Miss
	err    error
	marked bool // the file has refusedBit
}

func bad(reason fault.Reason, field string) verdict {
	return verdict{kind: damaged, miss: Miss{Reason: reason, Field: field}}
}

// read reads the entry at a place and verifies it against a key.
func (s *Store) read(l folder, place, key string) (frame.Entry, verdict) {
	return s.readMapped(l, place, key, nil)
}

func (s *Store) readMapped(l folder, place, key string, m *mapping) (frame.Entry, verdict) {
	if v := s.checkKey(l, place, key); v.kind != sound {
		return frame.Entry{}, v
	}
	file, v := s.readKernel(l, place, m)
	if v.kind != sound {
		return frame.Entry{}, v
	}
	if v.marked && !l.base {
		s.readRefused()
	}
	e, flaw := frame.Parse(file, frame.ID{Backend: backendOf(place), Key: key})
	miss := Miss(flaw)
	if !miss.None() && miss.Reason != fault.Outdated {
		return e, verdict{kind: damaged, miss: miss}
	}
	return e, verdict{kind: sound, miss: miss}
}

// checkKey compares key.bin with a key. A key.bin that belongs into another bucket is
// damaged; the size that kernel.bin has for it tells in which way.
func (s *Store) checkKey(l folder, place, key string) verdict {
	text, v := s.readKey(l, place)
	switch {
	case v.kind != sound:
		return v
	case text == key:
		return v
	case s.Bucket(text) == bucketOf(place):
		return verdict{kind: otherKey}
	}
	head := make([]byte, frame.MetaSize)
	if f, err := l.Open(place + "/" + kernelFile); err == nil {
		_, _ = readAll(f, head, 0) // bytes that cannot be read stay zero and tell nothing
		_ = f.Close()
	}
	switch n, ok := frame.KeySize(head); {
	case ok && n > int64(len(text)):
		return bad(fault.Truncated, keyFile)
	case ok && n < int64(len(text)):
		return bad(fault.Trailing, keyFile)
	}
	return bad(fault.Checksum, keyFile)
}

func (s *Store) readKey(l folder, place string) (string, verdict) {
	text, v := readWhole(l, place, keyFile, LongestKey, func([]byte, int64) frame.Flaw { return frame.Flaw{} }, nil)
	return string(text), v
}

func (s *Store) readKernel(l folder, place string, m *mapping) ([]byte, verdict) {
	return readWhole(l, place, kernelFile, Largest, frame.CheckPreamble, m)
}

// readWhole reads one file of an entry, and maps it if there is a mapping. It allocates memory
// of the file's size only after check has accepted the size and the first bytes.
func readWhole(l folder, place, name string, most int64, check func(head []byte, size int64) frame.Flaw, m *mapping) ([]byte, verdict) {
	f, err := l.Open(place + "/" + name)
	if err != nil {
		return nil, l.openVerdict(place, name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, verdict{kind: unreadable, err: err}
	}
	if !info.Regular() {
		return nil, bad(fault.Format, name)
	}
	head := make([]byte, min(info.Size, frame.Preamble))
	short, err := readAll(f, head, 0)
	switch {
	case err != nil:
		return nil, verdict{kind: unreadable, err: err}
	case short:
		return nil, bad(fault.Truncated, name)
	}
	if flaw := check(head, info.Size); !flaw.None() {
		return nil, verdict{kind: damaged, miss: Miss(flaw)}
	}
	if info.Size > most {
		return nil, bad(fault.TooLarge, name)
	}
	text := m.room(info.Size)
	n := copy(text, head)
	switch short, err := readAll(f, text[n:], int64(n)); {
	case err != nil:
		return nil, verdict{kind: unreadable, err: err}
	case short:
		return nil, bad(fault.Truncated, name)
	}
	m.take(f, info.Size)
	return text, verdict{kind: sound, marked: info.Mode&refusedBit != 0}
}

// openVerdict tells why a file of an entry cannot be opened.
func (l folder) openVerdict(place, name string, err error) verdict {
	switch {
	case isForeign(err):
		return bad(fault.Format, name)
	case !isGone(err):
		return verdict{kind: unreadable, err: err}
	}
	if _, there := l.files(place); !there {
		return verdict{kind: vanished}
	}
	if _, err := l.Lstat(place + "/" + name); !isGone(err) {
		return verdict{kind: vanished} // replaced a moment ago; the next call sees the new entry
	}
	return bad(fault.Truncated, name)
}

// setAside moves the damaged entries of a finding to quarantine/. A problem is only
// logged, since a later call will find the entry again.
func (s *Store) setAside(ctx context.Context, f *finding) {
	if len(f.bad) == 0 || f.err != nil {
		return
	}
	own := false
	for i := range f.bad {
		b := &f.bad[i]
		if b.layer > 0 {
			s.hide(s.layer(b.layer), b.place)
			continue
		}
		known := b.seen != outline{}
		if !known {
			b.seen = s.main.outline(b.place)
		}
		s.mu.Lock()
		stuck := s.mu.stuck[b.place] == b.seen
		s.mu.Unlock()
		if stuck || !known && !s.stillBad(b.place) { // it may have been replaced before
			b.seen = outline{}
		}
		own = own || !stuck
	}
	if !own || s.cfg.ReadOnly {
		return
	}
	next := 0
	err := s.dir.alter(ctx, func() error {
		begin := time.Now() // not the store's clock
		for n := 0; next < len(f.bad); next++ {
			b := &f.bad[next]
			if b.layer > 0 {
				continue
			}
			if n++; n > mostAside || n > 1 && time.Since(begin) > mostHeld {
				return errMore
			}
			if s.main.outline(b.place) != b.seen {
				continue // and a later call looks at what is there
			}
			stuck, err := s.dir.setAside(b.place, b.miss)
			if err != nil {
				return err
			}
			if b.gone = stuck == nil; stuck != nil {
				s.staysAside(b, stuck)
			}
		}
		return nil
	})
	if err != nil {
		s.logOnce("set aside", err)
	}
}

// staysAside remembers an entry that cannot be moved. It is tried again when its key is
// stored, and by the next opening.
func (s *Store) staysAside(b *flawed, why error) {
	s.degraded("set aside", why)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.stuck) >= mostStuck {
		clear(s.mu.stuck) // at worst they are tried again
	}
	s.mu.stuck[b.place] = b.seen
}

const mostStuck = 1024

// mostAside bounds how many entries are set aside before others have the lock.
const mostAside = 20

// stillBad looks again, when the outline of the entry is known.
func (s *Store) stillBad(place string) bool {
	key, v := s.readKey(s.main, place)
	if v.kind == sound {
		_, v = s.read(s.main, place, key)
	}
	return v.kind == damaged
}
