package sessioncache

import (
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/internal/touched"
)

// S1, F6: a set that makes room in several turns is one request, and one that others kept
// from its room for very many turns makes it in the next.
func TestSetOfManyTurnsIsOneRequest(t *testing.T) {
	const many = 2 * touched.Most
	cfg, err := Config{Groups: Unlimited, Bytes: LimitOf(many)}.Validate()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(cfg, newPublished(cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	c := &core{state: s}
	set := func(shape int, bytes int64, before int) (turns int) {
		t.Helper()
		m := &writing{use: c.use(strconv.Itoa(shape)), name: "n", hash: s.published.placed("n"), value: Value{Bytes: bytes}, turns: before}
		for out := again; out == again; turns++ {
			if out, err = s.set(m); err != nil {
				t.Fatal(err)
			}
			s.touched.Turn()
		}
		return turns
	}
	fill := func() {
		for i := range many {
			set(i, 1, 0)
		}
	}
	fill()
	asked := s.requests.padding.Asked // elements
	if turns := set(many, many, 0); turns < 2 || s.requests.padding.Asked-asked != many {
		t.Errorf("%d turns, and %d elements of the %d were asked for", turns, s.requests.padding.Asked-asked, many)
	}
	fill()
	s.touched.Add(touched.Most) // a turn that has done all it may
	if turns := set(many, many, touched.Often); turns != 1 || s.published.bytes.Load() != many {
		t.Errorf("%d turns more, then %d bytes", turns, s.published.bytes.Load())
	}
}
