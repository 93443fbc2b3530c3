package past

import "testing"

// F10: what is remembered takes bounded memory, and the last keys are known, however
// many there were.
func TestKeysAreBounded(t *testing.T) {
	k := Keys[int]{Most: 48}
	for h := range uint64(1000) {
		k.Set(h, 1)
		k.Set(h, 2) // known already
		if len(k.young)+len(k.old) > 2*k.Most {
			t.Fatalf("%d keys are known, want at most 2 x %d", len(k.young)+len(k.old), k.Most)
		}
	}
	for h := range uint64(1000) {
		if got := k.Find(h); got != 2 && (got != 0 || h >= uint64(1000-k.Most)) {
			t.Fatalf("key %d of the last %d: %d", h, k.Most, got)
		}
	}
}
