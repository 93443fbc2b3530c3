// Package past remembers how things ended, by the hash of their key, in bounded memory:
// two keys of one hash are one thing here.
package past

// Keys knows an R of each of the last keys that were set, Most of them at least and twice
// as many at most. It has two generations of keys. Where the young one is full, the old one
// is forgotten: a step costs O(1). Owned by one goroutine.
type Keys[R any] struct {
	Most       int
	young, old map[uint64]R
}

// Find gives what a key was set to, or zero.
func (k *Keys[R]) Find(hash uint64) R {
	if r, known := k.young[hash]; known {
		return r
	}
	return k.old[hash]
}

// Set remembers r for a key.
func (k *Keys[R]) Set(hash uint64, r R) {
	if _, known := k.young[hash]; !known && len(k.young) >= k.Most {
		k.old, k.young = k.young, nil
	}
	if k.young == nil {
		k.young = make(map[uint64]R)
	}
	k.young[hash] = r
}
