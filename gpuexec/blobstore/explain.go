package blobstore

import (
	"context"
	"maps"
	"slices"
	"strings"

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
// read every entry of the backend, so it does not belong in the path of a request.
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
	own := s.factors(backend, key)
	bucket := backend + "/" + s.Bucket(key) + "/"
	sameBucket := false
	for layer := range len(s.bases) + 1 {
		l := s.layer(layer)
		err := l.scan(func(place string, _ files) error {
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

// differ lists the factors in which an entry differs from the key and identity asked
// for, sorted. It is nil for an entry that is damaged or of another kind.
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
