package onednn

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
)

// C1, C2, C5: a model whose requests have 3 to 512 tokens, in no order, in a runtime and a session
// with a small capacity in bytes: programs take no more than the two and those of the shape
// in hand, and primitives no more than that and what the device keeps. Outputs are those
// of cpu all the while.
func TestLengthsWithinBytes(t *testing.T) {
	list := listOf(t, tinyModel)
	here, err := cpu.New("auto")
	if err != nil {
		t.Fatal(err)
	}
	const programs, values = 1 << 20, 1 << 20
	lib := &watched{Backend: backend(t)}
	m, rt := running(t, lib, list, kiln.LimitOf(programs), kiln.LimitOf(values))
	reference, _ := running(t, here, list, kiln.Limit{}, kiln.Limit{})
	large, unlimited := running(t, lib.Backend, list, kiln.Limit{}, kiln.Limit{})
	if _, err := large.Run(bg, [][]int32{list.Tokens(1, 1, 512)}); err != nil {
		t.Fatal(err)
	}
	inHand := unlimited.Artefacts().Stats().Bytes                              // as much for each length
	if _, bytes := lib.d.cache.Capacity(); bytes != kiln.LimitOf(spareBytes) { // few versions come near it
		t.Errorf("spare primitives may take %v bytes, want %d", bytes, int64(spareBytes))
	}
	lengths := rand.New(rand.NewPCG(3, 4)).Perm(510)[:200]
	if testing.Short() {
		lengths = lengths[:50]
	}
	// What there is of a program with primitives takes at least this, and has at most 20
	// objects of the library: two forms, each a primitive, its descriptor and memory objects.
	const least = simpleBytes + planBytes
	mostObjects := 20*(programs+values+inHand)/least + 2*spare
	var resident, native, objects int64
	for i, n := range lengths {
		ids := [][]int32{list.Tokens(1, i, n+3)}
		a, err := m.Run(bg, ids)
		if err != nil {
			t.Fatal(err)
		}
		lib.d.all.Wait()
		if i%64 == 0 {
			agrees(t, reference, ids, a.Output)
		}
		s, d, n := rt.Artefacts().Stats(), lib.d.cache.Stats(), lib.d.lib.Len()
		if s.Bytes > programs || d.Bytes > spareBytes {
			t.Fatalf("%d tokens: programs take %d bytes and spare primitives %d, want at most %d and %d", len(ids[0]), s.Bytes, d.Bytes, programs, spareBytes)
		}
		// What was evicted is freed behind the answer.
		for deadline := time.Now().Add(30 * time.Second); s.LeasedBytes > values+inHand || d.LeasedBytes > programs+values+inHand || n > mostObjects; runtime.Gosched() {
			if time.Now().After(deadline) {
				t.Fatalf("%d tokens: %d bytes of programs and %d of primitives are leased beside that, want at most %d and %d; %d objects of the library, want at most %d",
					len(ids[0]), s.LeasedBytes, d.LeasedBytes, values+inHand, programs+values+inHand, n, mostObjects)
			}
			s, d, n = rt.Artefacts().Stats(), lib.d.cache.Stats(), lib.d.lib.Len()
		}
		resident, native, objects = max(resident, s.Bytes+s.LeasedBytes), max(native, d.Bytes+d.LeasedBytes), max(objects, n)
	}
	t.Logf("%d lengths: at most %d bytes of programs, of which %d for a shape in hand, %d of primitives, %d objects of the library", len(lengths), resident, inHand, native, objects)
}
