package blobstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/frame"
)

// Info describes one entry. Created and the fields after it are zero if Flaw says
// that the entry could not be read.
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
	Flaw                  Miss // why the entry is bad; zero = sound
	SetAside              bool // this Verify has set it aside

	seen outline // before it was read
}

// List calls each for every entry of the directory, in the order of their names. It
// reads and verifies all of them. An error of each ends the list and is returned;
// otherwise the error is fault.ErrClosed, fault.ErrIO or the context's.
func (s *Store) List(ctx context.Context, each func(Info) error) error {
	if err := s.begin("store: list"); err != nil {
		return err
	}
	defer s.leave()
	if s.off {
		return nil
	}
	type counted struct {
		place string
		uses  int64
	}
	var all []counted
	err := s.eachRecord(ctx, func(r *record, u use) {
		if s.concerns(r.place) {
			all = append(all, counted{r.place, u.count})
		}
	})
	if err != nil {
		return trouble("store: list", s.cfg.Dir, err)
	}
	slices.SortFunc(all, func(a, b counted) int { return strings.Compare(a.place, b.place) })
	for _, c := range all {
		if err := ctx.Err(); err != nil {
			return err
		}
		info, v := s.inspect(s.main, c.place)
		if v.kind == vanished {
			continue
		}
		info.Uses = c.uses
		if err := each(info); err != nil {
			return err
		}
	}
	return nil
}

// Inspect describes the entry of a name as Info.Entry gives it. The error is
// fault.ErrNotFound if there is no such entry, or as List's.
func (s *Store) Inspect(ctx context.Context, entry string) (Info, error) {
	const op = "store: inspect"
	if !isPlace(entry) {
		return Info{}, fault.Invalidf(op, "%q: want BACKEND/BUCKET/SLOT", entry)
	}
	if err := s.begin(op); err != nil {
		return Info{}, err
	}
	defer s.leave()
	missing := &fault.Error{Op: op, Key: entry, Err: fault.ErrNotFound}
	if s.off || !s.concerns(entry) {
		return Info{}, missing
	}
	info, v := s.inspect(s.main, entry)
	if v.kind == vanished {
		return Info{}, missing
	}
	u, err := s.useOf(ctx, entry, info.Created)
	if err != nil {
		return Info{}, trouble(op, s.cfg.Dir, err)
	}
	info.Uses = u.count
	return info, nil
}

// inspect verifies an entry against the key in its folder.
func (s *Store) inspect(l folder, place string) (Info, verdict) {
	parts := strings.Split(place, "/")
	i := Info{Entry: place, Backend: parts[0], Bucket: parts[1], Slot: parts[2]}
	i.seen = l.outline(place)
	i.Bytes = sized(place, i.seen.files).bytes
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
		i.Flaw = degradedBy(v.err)
	}
	return i, v
}

// Verify reads every byte of every entry and gives the bad ones. An entry of another
// identity is not bad. With repair the bad entries are set aside where that is
// possible; Info.SetAside tells. A file that cannot be read has the reason degraded
// and stays where it is, as does a folder that may not be listed, which has no Slot. A Key
// of more than 1 KiB is left out: Inspect tells it.
// The errors are those of List.
func (s *Store) Verify(ctx context.Context, repair bool) (bad []Info, err error) {
	const op = "store: verify"
	f := &finding{}
	var damaged []int // of bad
	if err := s.relist(ctx, op); err != nil {
		return nil, err
	}
	err = s.List(ctx, func(i Info) error {
		if !i.Flaw.None() && i.Flaw.Reason != fault.Outdated {
			if len(i.Key) > longKey { // and the bad ones may be many
				i.Key = ""
			}
			bad = append(bad, i)
			if i.Flaw.Reason != fault.Degraded { // such a one may be sound
				damaged = append(damaged, len(bad)-1)
				f.bad = append(f.bad, flawed{place: i.Entry, miss: i.Flaw, seen: i.seen})
			}
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
	err = s.main.scan(nil, func(name string, err error) {
		if s.concerns(name) {
			_, bucket, _ := strings.Cut(name, "/")
			bad = append(bad, Info{Entry: strings.TrimSuffix(name, "/") + "/", Backend: backendOf(name), Bucket: bucket, Flaw: degradedBy(err)})
		}
	})
	if err != nil {
		return bad, trouble(op, s.cfg.Dir, err)
	}
	if repair {
		s.setAside(ctx, f)
		for i, at := range damaged {
			bad[at].SetAside = f.bad[i].gone
		}
	}
	return bad, nil
}

const longKey = 1 << 10 // bytes

// relist makes the next change list the directory, whatever the index says of it.
func (s *Store) relist(ctx context.Context, op string) error {
	if s.off || s.cfg.ReadOnly {
		return nil
	}
	if err := s.begin(op); err != nil {
		return err
	}
	defer s.leave()
	return s.dir.distrust(ctx)
}

// Prune evicts entries in the order of the policy until the entries take at most the
// bytes given, counted as Config.Capacity counts them. With Config.Only it evicts entries
// of that backend alone, and ends when there are none. The error is fault.ErrInvalid
// for a negative number, fault.ErrRefused with reason degraded for a directory that could
// not be written when it was opened, and where entries cannot be removed and more bytes
// are left, fault.ErrClosed, fault.ErrIO or the context's. With
// Config.ReadOnly nothing is evicted.
func (s *Store) Prune(ctx context.Context, bytes int64) error {
	if bytes < 0 {
		return fault.Invalidf("store: prune", "%d bytes: want 0 or more", bytes)
	}
	if err := s.begin("store: prune"); err != nil {
		return err
	}
	defer s.leave()
	if s.sealed {
		return s.unwritable("store: prune", "", "")
	}
	if s.off || s.cfg.ReadOnly {
		return nil
	}
	d, stuck, first := &s.dir, 0, true
	err := d.alter(ctx, func() error {
		if first {
			d.retriedAt, first = time.Time{}, false // whoever asks for it wants it tried
		}
		err := d.shrink(bytes, "", s.cfg.Only)
		if err == nil && d.idx.disk > bytes {
			stuck = d.idx.stuck(s.cfg.Only)
		}
		return err
	})
	if err != nil {
		return trouble("store: prune", s.cfg.Dir, err)
	}
	if stuck > 0 {
		return refused("store: prune", s.cfg.Only, "", Miss{Reason: fault.Degraded}, fmt.Errorf("%w: %d entries could not be removed", fault.ErrIO, stuck))
	}
	return nil
}

// Explanation says why a key has no hit (SPEC R2).
type Explanation struct {
	Factors []string // those that differ from the nearest entry, sorted; empty after a hit, or if there is no such entry
	Nearest string   // place of the nearest entry; empty if there is none
	Miss    Miss     // zero = a hit
}

// Explain compares a key and the store's identity with the nearest entry: one of
// the same key, else of the same bucket, else of the same backend and kind. It may
// read every key of the backend, and the entries that are nearer than those before, so it does not belong in the path of a request.
// It changes no counter. The error is fault.ErrInvalid, fault.ErrClosed,
// fault.ErrIO or the context's.
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
	n := nearness{s: s, own: s.factors(backend, key), present: present}
	bucket := backend + "/" + s.Bucket(key)
	err := n.search(ctx, func(l folder, each visit, skipped func(string, error)) error {
		return l.scanBucket(bucket, each, skipped)
	})
	if err == nil && n.place == "" {
		err = n.search(ctx, func(l folder, each visit, skipped func(string, error)) error {
			return l.scanBackend(backend, each, skipped)
		})
	}
	out.Factors, out.Nearest = n.differ, n.place
	return out, err
}

// nearness is a search for the entry that differs in the fewest factors.
type nearness struct {
	s       *Store
	own     map[string]string
	present frame.Identity
	differ  []string // of the nearest
	place   string
}

var errNearest = errors.New("nothing can be nearer")

// search looks at what scan visits, in all layers, until one differs in a single factor.
func (n *nearness) search(ctx context.Context, scan func(folder, visit, func(string, error)) error) error {
	for layer := range len(n.s.bases) + 1 {
		l := n.s.layer(layer)
		err := scan(l, func(place string, _ files) error {
			if differ := n.s.differ(l, place, n.own, n.present, len(n.differ)); differ != nil {
				n.differ, n.place = differ, place
			}
			if len(n.differ) == 1 {
				return errNearest
			}
			return ctx.Err()
		}, func(_ string, err error) { n.s.logOnce("list", err) })
		if err == errNearest {
			return nil
		}
		if err != nil && !isGone(err) {
			return trouble("store: explain", l.Root(), err)
		}
	}
	return nil
}

func (s *Store) factors(backend, key string) map[string]string {
	if s.cfg.Factors != nil {
		if f := s.cfg.Factors(backend, key); f != nil {
			return f
		}
	}
	return map[string]string{"key": key}
}

// differ lists the factors in which an entry differs from the key and identity asked
// for, sorted. It is nil for an entry that is damaged or of another kind, and for one
// that differs in as many as most, if that is above 0; its kernel.bin is read only if the
// key does not tell so.
func (s *Store) differ(l folder, place string, own map[string]string, present frame.Identity, most int) []string {
	key, v := s.readKey(l, place)
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
	if most > 0 && len(differ) >= most {
		return nil
	}
	e, v := s.read(l, place, key)
	if v.kind != sound {
		return nil
	}
	if v.miss.None() {
		differ = append(differ, e.Misfits(present)...)
	}
	slices.Sort(differ)
	if differ = slices.Compact(differ); most > 0 && len(differ) >= most {
		return nil
	}
	return differ
}
