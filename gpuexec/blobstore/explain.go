package blobstore

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
)

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
