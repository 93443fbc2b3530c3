package blobstore

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"time"

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
	u.Capacity = s.remembered().capacity
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
		return s.main.scan(func(place string, f files) error {
			r := sized(place, f)
			if x.own[place].count+x.others[place].count > 0 {
				s.main.meta(&r)
			}
			each(&r, x.useOf(&r))
			return ctx.Err()
		}, s.skipped)
	}
	d, visited := &s.dir, false
	look := func() { // without the lock of the directory
		if d.idx.rest {
			return
		}
		visited = true
		for _, r := range d.idx.entries {
			r := *r
			if !r.known && s.policy() != FIFO {
				s.main.meta(&r)
			}
			each(&r, d.idx.useOf(&r))
		}
	}
	err := d.alter(ctx, func() error {
		if visited { // a change was not at its end, and the next one goes on with it
			return nil
		}
		if err := cmp.Or(d.whole(), d.told()); err != nil {
			return err
		}
		d.look = look
		return nil
	})
	if err == nil && !visited {
		err = errStale
	}
	return err
}

// recorded is an index of what writers have written of uses.
func (s *Store) recorded() *index {
	x := newIndex(s.policy())
	live, ended, _, _ := s.readUses(x, false) // hints: a directory may lack them
	x.own, x.others = ended, live
	return x
}

// useOf is the use of one entry that was made at that time.
func (s *Store) useOf(ctx context.Context, place string, created time.Time) (use, error) {
	r := record{place: place, created: created.UnixNano()}
	x := newIndex(FIFO)
	if !s.cfg.ReadOnly {
		d := &s.dir
		if err := d.hold(ctx); err != nil {
			return use{}, err
		}
		defer d.unhold()
		d.checkUses()
		s.takeUses(d.idx)
		x.own = d.idx.own
	}
	x.others = s.usesOf(place)
	return x.useOf(&r), nil
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
	err = s.main.scan(func(place string, f files) error {
		disk += sized(place, f).bytes
		return nil
	}, s.skipped)
	return u.Bytes, s.main.readSize(), disk, err
}

// readSize is what size.txt says, or unknownSize.
func (f folder) readSize() int64 {
	text, err := vfs.ReadFile(f, sizeFile, 32)
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
	err := rewrite(d.s.main, sizeFile, strconv.AppendInt(nil, d.idx.bytes, 10))
	if err == nil {
		d.text = d.idx.bytes
	}
	return err
}
