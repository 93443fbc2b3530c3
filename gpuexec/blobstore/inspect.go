package blobstore

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/frame"
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

// Info describes one entry.
type Info struct {
	Entry                 string // its name for Inspect: BACKEND/BUCKET/SLOT
	Backend, Bucket, Slot string
	Key                   string
	Bytes                 int64 // of both files
	Created               time.Time
	Cost                  time.Duration // that compiling took
	Uses                  int64
	Producer              gpuexec.Identity
	Requires              []string
	Signer                string
	Flaw                  Miss // zero = sound
	SetAside              bool // by this Verify
}

// List visits every entry of the directory, verified, in order of their names.
// each may end it with an error of its own.
func (s *Store) List(ctx context.Context, each func(Info) error) error {
	if err := s.begin("store: list"); err != nil {
		return err
	}
	defer s.leave()
	if s.off {
		return nil
	}
	uses := map[string]int64{}
	var places []string
	err := s.eachRecord(ctx, func(r *record, u use) {
		if s.concerns(r.place) {
			places = append(places, r.place)
			uses[r.place] = u.count
		}
	})
	if err != nil {
		return trouble("store: list", s.cfg.Dir, err)
	}
	slices.Sort(places)
	for _, place := range places {
		if err := ctx.Err(); err != nil {
			return err
		}
		info, v := s.inspect(s.main, place)
		if v.kind == vanished {
			continue
		}
		info.Uses = uses[place]
		if err := each(info); err != nil {
			return err
		}
	}
	return nil
}

// Inspect describes the entry of that name (Info.Entry).
func (s *Store) Inspect(ctx context.Context, entry string) (Info, error) {
	const op = "store: inspect"
	if !isPlace(entry) {
		return Info{}, fault.Invalidf(op, "%q: want BACKEND/BUCKET/SLOT", entry)
	}
	var found *Info
	err := s.List(ctx, func(i Info) error {
		if i.Entry == entry {
			found = &i
		}
		return nil
	})
	if err == nil && found == nil {
		err = &fault.Error{Op: op, Key: entry, Err: fault.ErrNotFound}
	}
	if err != nil {
		return Info{}, err
	}
	return *found, nil
}

// inspect verifies the entry of a place against the key that lies beside it.
func (s *Store) inspect(l folder, place string) (Info, verdict) {
	parts := strings.Split(place, "/")
	i := Info{Entry: place, Backend: parts[0], Bucket: parts[1], Slot: parts[2]}
	a, b, _ := l.sizes(place)
	i.Bytes = max(a, 0) + max(b, 0)
	key, v := s.readKey(l, place)
	if v.kind == sound {
		var e frame.Entry
		if i.Key = key; s.Bucket(key) != i.Bucket {
			v = s.checkKey(l, place, "") // no entry has an empty key, so this says how the key was damaged
		} else if e, v = s.read(l, place, key); v.kind == sound {
			i.Created, i.Cost, i.Producer, i.Requires, i.Signer = e.Created, e.Cost, gpuexec.Identity(e.Identity), e.Requires, e.Signer
		}
	}
	if i.Flaw = v.miss; v.kind == unreadable {
		i.Flaw = Miss{Reason: fault.Degraded}
	}
	return i, v
}

// Verify looks at every byte of every entry and gives the bad ones. With repair
// they are set aside, as far as that can be done: SetAside says of which it was. An
// entry that is sound and does not fit is not bad. What may not be read is given as
// degraded, of a folder that may not be listed without Slot, or Bucket; it stays
// where it is.
func (s *Store) Verify(ctx context.Context, repair bool) (bad []Info, err error) {
	const op = "store: verify"
	f := &finding{}
	err = s.List(ctx, func(i Info) error {
		if !i.Flaw.None() && i.Flaw.Reason != fault.Outdated {
			bad = append(bad, i)
			f.bad = append(f.bad, flawed{place: i.Entry, miss: i.Flaw})
		}
		return nil
	})
	if err != nil || s.off {
		return bad, err
	}
	if err := s.begin(op); err != nil {
		return bad, err
	}
	defer s.leave()
	err = s.main.scan(func(string, int64, int64) error { return ctx.Err() }, func(name string, err error) {
		if s.concerns(name) {
			_, bucket, _ := strings.Cut(name, "/")
			bad = append(bad, Info{Entry: backendOf(name) + "/" + bucket + "/", Backend: backendOf(name), Bucket: bucket, Flaw: Miss{Reason: fault.Degraded}})
		}
	})
	if err != nil {
		return bad, trouble(op, s.cfg.Dir, err)
	}
	if repair {
		s.setAside(ctx, f)
		for i := range f.bad { // the first of all that are bad
			bad[i].SetAside = f.bad[i].gone
		}
	}
	return bad, nil
}

// Prune evicts by the policy until no more than that many bytes are in use, or
// with Config.Only nothing of that backend is left.
func (s *Store) Prune(ctx context.Context, bytes int64) error {
	if bytes < 0 {
		return fault.Invalidf("store: prune", "%d bytes: want 0 or more", bytes)
	}
	if err := s.begin("store: prune"); err != nil {
		return err
	}
	defer s.leave()
	if s.off || s.cfg.ReadOnly {
		return nil
	}
	err := s.dir.alter(ctx, func() error { return s.dir.shrink(bytes, "", s.cfg.Only) })
	if err != nil {
		return trouble("store: prune", s.cfg.Dir, err)
	}
	return nil
}

// Explanation says why there is no hit (SPEC R2).
type Explanation struct {
	Factors []string // that differ from the nearest entry, sorted; empty: a hit, or nothing to compare with
	Nearest string   // place of that entry, empty if there is none
	Miss    Miss     // zero = a hit
}

// Explain compares what is asked with the nearest entry: of the same key, else
// of the same bucket, else of the same backend and kind. It may read every key
// of the backend and belongs off a request's path. Nothing is counted.
func (s *Store) Explain(ctx context.Context, backend, key string) (Explanation, error) {
	if err := s.enter("store: explain", backend, key); err != nil {
		return Explanation{}, err
	}
	defer s.leave()
	present, off := s.isOff(backend)
	if s.off {
		return Explanation{Miss: Miss{Reason: fault.Disabled}}, nil
	}
	f := s.find(backend, key, present)
	if f.hit && !off {
		return Explanation{Nearest: f.blob.Place}, nil
	}
	out := Explanation{Miss: f.miss()}
	if f.nearest != nil {
		out.Nearest = f.nearest.place
		out.Factors = slices.Sorted(slices.Values(f.nearest.misfits))
		return out, nil
	}
	own := s.factors(backend, key)
	bucket := backend + "/" + s.Bucket(key) + "/"
	sameBucket := false
	for layer := range len(s.bases) + 1 {
		l := s.layer(layer)
		err := l.scan(func(place string, _, _ int64) error {
			inBucket := strings.HasPrefix(place, bucket)
			if backendOf(place) != backend || sameBucket && !inBucket {
				return ctx.Err()
			}
			if differ := s.differ(l, place, own, present); differ != nil && (len(out.Factors) == 0 || inBucket && !sameBucket || len(differ) < len(out.Factors)) {
				out.Factors, out.Nearest, sameBucket = differ, place, sameBucket || inBucket
			}
			return ctx.Err()
		}, func(_ string, err error) { s.logOnce("list", err) })
		if err != nil && !isGone(err) {
			return out, trouble("store: explain", l.Root(), err)
		}
	}
	return out, nil
}

func (s *Store) factors(backend, key string) map[string]string {
	if s.cfg.Factors != nil {
		if f := s.cfg.Factors(backend, key); f != nil {
			return f
		}
	}
	return map[string]string{"key": key}
}

// differ lists the factors in which a sound entry differs from what is asked,
// sorted; nil if it is not to be compared with: damaged, or of another kind.
func (s *Store) differ(l folder, place string, own map[string]string, present frame.Identity) []string {
	key, v := s.readKey(l, place)
	if v.kind != sound {
		return nil
	}
	e, v := s.read(l, place, key)
	other := s.factors(backendOf(place), key)
	if v.kind != sound || own["kind"] != other["kind"] {
		return nil
	}
	names := maps.Clone(own)
	maps.Copy(names, other)
	var differ []string
	for name := range names {
		a, inOwn := own[name]
		b, inOther := other[name]
		if a != b || inOwn != inOther {
			differ = append(differ, name)
		}
	}
	if v.miss.None() {
		differ = append(differ, e.Misfits(present)...)
	}
	slices.Sort(differ)
	return slices.Compact(differ)
}
