package blobstore

import (
	"context"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// concerns reports whether Config.Only leaves an entry visible.
func (s *Store) concerns(place string) bool {
	return s.cfg.Only == "" || s.cfg.Only == backendOf(place)
}

// Usage says what a directory holds.
type Usage struct {
	Entries     int
	Bytes       int64            // of the contents of all entries
	DiskBytes   int64            // the same with each file rounded up to 4 KiB, which is about what it takes
	Capacity    limit.Limit      // in bytes, that the directory remembers; not given if it remembers none
	Quarantined int              // bad entries that were set aside and are still kept, of every backend
	ByBackend   map[string]int64 // bytes
}

// Usage counts the entries of the directory, those of other processes too. Bases
// are not counted. The error is fault.ErrClosed, fault.ErrIO or the context's.
func (s *Store) Usage(ctx context.Context) (Usage, error) {
	u := Usage{ByBackend: map[string]int64{}}
	if err := s.begin("store: usage"); err != nil {
		return u, err
	}
	defer s.leave()
	if s.off {
		return u, nil
	}
	err := s.eachRecord(ctx, func(r *record, _ use) {
		if !s.concerns(r.place) {
			return
		}
		u.Entries++
		u.Bytes += r.bytes
		u.DiskBytes += r.disk
		u.ByBackend[backendOf(r.place)] += r.bytes
	})
	if err != nil {
		return u, trouble("store: usage", s.cfg.Dir, err)
	}
	u.Capacity = settingsIn(s.main).capacity
	list, err := s.main.ReadDir(quarantineDir)
	if err != nil && !isGone(err) {
		s.degraded("list", err)
	}
	u.Quarantined = len(list)
	return u, nil
}

// eachRecord visits the index after bringing it up to date. A read-only store has no
// index: its files are visited.
func (s *Store) eachRecord(ctx context.Context, each func(*record, use)) error {
	if s.cfg.ReadOnly {
		x := s.recorded()
		return s.main.scan(func(place string, key, kernel int64) error {
			r := sized(place, key, kernel)
			if x.own[place].count+x.others[place].count > 0 {
				s.main.meta(&r)
			}
			each(&r, x.useOf(&r))
			return ctx.Err()
		}, s.skipped)
	}
	if err := s.dir.begin(ctx); err != nil {
		return err
	}
	x := s.dir.idx
	for _, place := range x.places() {
		s.visit(x, place, each)
	}
	if err := s.dir.end(ctx); err != errMore { // the next change evicts the rest
		return err
	}
	return nil
}

func (s *Store) visit(x *index, place string, each func(*record, use)) {
	r := *x.entries[place]
	if !r.known && s.policy() != FIFO {
		s.main.meta(&r)
	}
	each(&r, x.useOf(&r))
}

// recorded is an index of what writers have written of uses.
func (s *Store) recorded() *index {
	x := newIndex(s.policy())
	live, ended, _, _ := s.readUses() // hints: a directory may lack them
	x.own, x.others = ended, live
	return x
}

// useOf is the use of one entry, as eachRecord gives it.
func (s *Store) useOf(ctx context.Context, place string) (u use, err error) {
	if s.cfg.ReadOnly {
		r := record{place: place}
		s.main.meta(&r)
		return s.recorded().useOf(&r), nil
	}
	if err := s.dir.begin(ctx); err != nil {
		return u, err
	}
	if x := s.dir.idx; x.entries[place] != nil {
		s.visit(x, place, func(_ *record, of use) { u = of })
	}
	if err := s.dir.end(ctx); err != errMore {
		return u, err
	}
	return u, nil
}

// Audit counts the bytes in use in three ways: by the store's own account, by
// size.txt (-1 if that cannot be read), and by the sizes of the files. In a store
// without Config.Only the three are equal unless another process is storing. The
// errors are those of Usage.
func (s *Store) Audit(ctx context.Context) (size, text, disk int64, err error) {
	u, err := s.Usage(ctx)
	if err != nil || s.off {
		return 0, 0, 0, err
	}
	err = s.main.scan(func(_ string, key, kernel int64) error {
		disk += max(key, 0) + max(kernel, 0)
		return nil
	}, s.skipped)
	return u.Bytes, s.dir.readSize(), disk, err
}

// readSize is what size.txt says, or unknownSize.
func (d *directory) readSize() int64 {
	text, err := vfs.ReadFile(d.s.main, sizeFile, 32)
	if err != nil {
		return unknownSize
	}
	n, err := strconv.ParseInt(strings.TrimSuffix(string(text), "\n"), 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != strings.TrimSuffix(string(text), "\n") {
		return unknownSize
	}
	return n
}

// writeSize writes size.txt.
func (d *directory) writeSize() error {
	d.text = unknownSize
	temporary := tmpDir + "/" + hostlock.Unique()
	err := vfs.WriteNew(d.s.main, temporary, false, strconv.AppendInt(nil, d.idx.bytes, 10))
	if err == nil {
		err = replace(d.s.main, temporary, sizeFile)
	}
	if err != nil {
		_ = d.s.main.Remove(temporary) // the next sweep removes what is left
		return err
	}
	d.text = d.idx.bytes
	return nil
}
