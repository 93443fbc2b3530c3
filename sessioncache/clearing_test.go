package sessioncache

import (
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/internal/touched"
)

// G7: each of two resets of an owner that overlap removes all names that were set before
// it, also those that the first one has still to remove; and neither removes for ever
// what is set meanwhile.
func TestResetsOverlap(t *testing.T) {
	cfg, err := Config{Groups: Unlimited}.Validate()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(cfg, newPublished(cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	c := &core{state: s}
	set := func(i int) {
		t.Helper()
		if _, err := s.set(&writing{use: c.use(strconv.Itoa(i)), name: "name", hash: s.published.placed("name"), options: Options{Owner: "owner"}}); err != nil {
			t.Fatal(err)
		}
		s.touched.Turn()
	}
	reset := func() *clearing {
		t.Helper()
		left, err := s.reset("owner", nil)
		if err != nil || left == nil {
			t.Fatalf("%v, %v", left, err)
		}
		return left
	}
	step := func(left *clearing) bool {
		done := s.clear(left)
		s.touched.Turn()
		return done
	}
	const names = 2 * touched.Most
	for i := range names {
		set(i)
	}
	first := reset()
	if step(first) {
		t.Fatal("one turn was enough")
	}
	set(names)
	second := reset()
	set(names + 1)
	for !step(second) {
	}
	if n := s.published.objects.Load(); n != 1 {
		t.Fatalf("%d names after the second reset, want the one that was set after it", n)
	}
	if !step(first) || s.published.objects.Load() != 1 || len(s.clearing) != 0 {
		t.Errorf("%d names, %d resets under way", s.published.objects.Load(), len(s.clearing))
	}
}
