package blobstore

import (
	"context"
)

// concerns reports whether an entry is one of those that Config.Only leaves.
func (s *Store) concerns(place string) bool {
	return s.cfg.Only == "" || s.cfg.Only == backendOf(place)
}

// Usage is what a directory holds.
type Usage struct {
	Entries     int
	Bytes       int64 // of all key.bin and kernel.bin outside quarantine/
	Quarantined int   // bad entries set aside and still kept, of every backend; 0 too where they may not be listed
	ByBackend   map[string]int64
}

// Usage counts what is there, with what other processes stored and evicted.
// Bases are not counted.
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
		u.ByBackend[backendOf(r.place)] += r.bytes
	})
	if err != nil {
		return u, trouble("store: usage", s.cfg.Dir, err)
	}
	list, err := s.main.ReadDir(quarantineDir)
	if err != nil && !isGone(err) {
		s.degraded("list", err)
	}
	u.Quarantined = len(list)
	return u, nil
}

// eachRecord visits the index, brought up to date, or the files themselves where
// nothing may be written.
func (s *Store) eachRecord(ctx context.Context, each func(*record, use)) error {
	if s.cfg.ReadOnly {
		x := newIndex(s.cfg.Policy)
		live, ended, _, _ := s.readUses() // hints, which a directory may lack
		x.own, x.others = ended, live
		return s.main.scan(func(place string, key, kernel int64) error {
			r := record{place: place, bytes: max(key, 0) + max(kernel, 0)}
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
		r := *x.entries[place]
		if !r.known && s.cfg.Policy != FIFO {
			s.main.meta(&r)
		}
		each(&r, x.useOf(&r))
	}
	return s.dir.end(ctx)
}

// Audit compares three counts of the bytes in use: the store's own, what
// size.txt says (-1: nothing that can be read), and what lies on the disk. They
// are comparable where Config.Only is empty.
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
