package blobstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// P7: the line of each place is found in a file of uses, whatever its length.
func TestLinesNearEachPlace(t *testing.T) {
	for _, entries := range []int{1, 50, 400, 2000} {
		lines := make([]string, entries)
		for i := range lines {
			lines[i] = fmt.Sprintf("%d %d %d test/%d/%d\n", i+1, i+2, 7*i, i*i*i, i%3)
		}
		slices.SortFunc(lines, func(a, b string) int { return strings.Compare(strings.Fields(a)[3], strings.Fields(b)[3]) })
		text := "open 5\n" + strings.Join(lines, "")
		for _, line := range lines {
			place := strings.Fields(line)[3]
			if got := linesNear(strings.NewReader(text), int64(len(text)), place); !strings.Contains(string(got), line) {
				t.Fatalf("of %d places %s is not found", entries, place)
			}
		}
	}
}

// P7: uses of an entry that is there are kept when later ones come of another that had its
// place, and go before those, in whichever order they come.
func TestUsesOfWhatIsThere(t *testing.T) {
	there, other := use{created: 2, count: 5, last: 4}, use{created: 3, count: 1, last: 9} // made by a clock that was ahead
	for _, order := range [][]use{{there, other}, {other, there}, {other, there, other}} {
		x := newIndex(LRU)
		x.add(record{place: "test/1/0", known: true, created: 2})
		us := uses{}
		for _, u := range order {
			x.merge(us, uses{"test/1/0": u})
		}
		if us["test/1/0"] != there {
			t.Errorf("%v give %v, want %v", order, us["test/1/0"], there)
		}
	}
}
