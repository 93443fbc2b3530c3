package sessioncache_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/sessioncache"
)

// Q5: costs near the longest duration are no sum that wraps; when the dear names have
// gone, the sum of the others is right.
func TestCostsSaturate(t *testing.T) {
	s, err := sessioncache.Open(sessioncache.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(bg) }()
	shape := mustShape(t, 1)
	want := func(cost time.Duration) {
		t.Helper()
		all, err := s.List(bg)
		if err != nil || len(all) != 1 || all[0].Cost != cost {
			t.Fatalf("%v, %v: want one group of cost %v", all, err, cost)
		}
	}
	set := func(name, owner string, cost time.Duration) {
		t.Helper()
		if err := s.Set(bg, shape, name, sessioncache.Value{Cost: cost}, sessioncache.Options{Owner: owner}); err != nil {
			t.Fatal(err)
		}
	}
	set("cheap", "", time.Second)
	want(time.Second)
	for i := range 4 {
		set(strconv.Itoa(i), "dear", math.MaxInt64)
		want(math.MaxInt64)
	}
	if err := s.Reset(bg, "dear"); err != nil {
		t.Fatal(err)
	}
	want(time.Second)
}

// Q5: without a capacity in bytes, groups go before their sum would wrap.
func TestBytesDoNotWrap(t *testing.T) {
	if testing.Short() {
		t.Skip("32,770 groups")
	}
	s, err := sessioncache.Open(sessioncache.Config{Groups: sessioncache.Unlimited, Policy: "fifo"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(bg) }()
	const most = 1 << 48
	for i := range math.MaxInt64/most + 3 {
		if err := s.Set(bg, mustShape(t, int64(i)), "name", sessioncache.Value{Bytes: most}, sessioncache.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	if groups, bytes := s.Groups(), s.Bytes(); groups != math.MaxInt64/most || bytes != groups*most {
		t.Errorf("%d groups of %d bytes in all, want %d groups", groups, bytes, int64(math.MaxInt64/most))
	}
}
