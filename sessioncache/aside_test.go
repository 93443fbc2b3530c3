package sessioncache

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/touched"
	"github.com/kiln-cache/kiln/shapegroups"
)

// S3: a miss that finds most groups in use does not look at all of them, every time.
func TestVictimAmongBusyGroups(t *testing.T) {
	for _, kind := range policy.Kinds() {
		for _, busy := range []int{100, 1000, 10_000} {
			t.Run(fmt.Sprint(kind, "/", busy), func(t *testing.T) {
				cfg, err := Config{Groups: LimitOf(int64(busy) + 1), Policy: string(kind)}.Validate()
				if err != nil {
					t.Fatal(err)
				}
				s, err := newState(cfg, newPublished(cfg, nil))
				if err != nil {
					t.Fatal(err)
				}
				c := &core{state: s}
				miss := func(i int) *group {
					t.Helper()
					if _, err := s.set(&writing{use: c.use(strconv.Itoa(i)), name: "name", hash: s.published.placed("name")}); err != nil {
						t.Fatal(err)
					}
					s.touched.Turn()
					return s.published.lookup(c.use(strconv.Itoa(i)).compiled)
				}
				for i := range busy {
					miss(i).grace.enter()
				}
				miss(busy)
				miss(busy + 1) // the first one passes over them
				s.touched = touched.Gauge{}
				for i := range 100 {
					miss(busy + 2 + i)
				}
				if n := s.touched.Most(); n > 4 {
					t.Errorf("a miss looked at %d groups", n)
				}
				if n := s.published.groups.Load(); n != int64(busy)+1 || s.published.evictions.Load() != 101 {
					t.Errorf("%d groups, %d evicted", n, s.published.evictions.Load())
				}
			})
		}
	}
}

// F6, Q3: a claimant has its answer after so many turns, though the session that is asked is
// in use and none of them is enough: what others do there meanwhile sets nothing back.
func TestGiftEndsWhileTheGiverIsInUse(t *testing.T) {
	cfg, err := Config{Groups: LimitOf(10)}.Validate()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newState(cfg, newPublished(cfg, nil))
	if err != nil {
		t.Fatal(err)
	}
	c := &core{state: s}
	if _, err := s.set(&writing{use: c.use("1"), name: "name", hash: s.published.placed("name"), value: Value{Bytes: 1}}); err != nil {
		t.Fatal(err)
	}
	gift, turns, more := 0, 0, true
	for ; more && turns <= touched.Often; turns++ {
		s.touched.Add(touched.Most) // users came and went
		_, more = s.give(&gift, 1, Floor{}, policy.Busy, ForPool)
		s.touched.Turn()
		if !s.sifted(new(int), 1, 0) {
			t.Fatal("a write needs room")
		}
		s.touched.Turn()
	}
	if more {
		t.Errorf("no answer after %d turns", turns)
	}
}

// S3: a group that was passed over since it was in use goes before those that are, as
// soon as it is not: when its last handle, or the last lease on a value of it, has ended.
func TestGroupsBecomeFree(t *testing.T) {
	ctx := context.Background()
	for _, lease := range []bool{false, true} {
		t.Run(fmt.Sprint("lease=", lease), func(t *testing.T) {
			s, err := Open(Config{Groups: LimitOf(4), Policy: "lru"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close(ctx) }()
			shape := func(n int) shapegroups.Shape {
				shape, err := shapegroups.N(int64(n))
				if err != nil {
					t.Fatal(err)
				}
				return shape
			}
			hold := func(n int) (end func()) {
				t.Helper()
				g, err := s.Group(ctx, shape(n))
				if err != nil {
					t.Fatal(err)
				}
				if err := g.Set(ctx, "name", Value{}, Options{}); err != nil {
					t.Fatal(err)
				}
				if !lease {
					return g.Close
				}
				ref, _ := g.Lookup("name", 0)
				l, ok := ref.Acquire()
				if !ok {
					t.Fatal("no lease")
				}
				g.Close()
				return l.End
			}
			ends := make(map[int]func())
			for n := range 5 {
				ends[n] = hold(n) // the last one evicts the first: all are in use
			}
			defer func() {
				for _, end := range ends {
					end()
				}
			}()
			for _, n := range []int{3, 2} {
				ends[n]()
				ends[n+10] = hold(n + 10)
				if s.Has(shape(n)) || !s.Has(shape(1)) {
					t.Errorf("%d is not in use and stays: %v; 1 is in use and stays: %v", n, s.Has(shape(n)), s.Has(shape(1)))
				}
			}
		})
	}
}
