package advice

import (
	"testing"

	"github.com/kiln-cache/kiln/shapegroups"
)

// S5: the numbers of shapes that are asked for no more are given to others, so the
// memory is that of the last requests.
func TestRecorderNumbers(t *testing.T) {
	const most = 10
	var r ring
	for i := range 1000 {
		s, err := shapegroups.N(int64(i))
		if err != nil {
			t.Fatal(err)
		}
		r.put(pair{s, s}, most)
	}
	if len(r.pairs) > most+1 || len(r.numbers) != most {
		t.Errorf("%d numbers given, %d in use, for %d requests", len(r.pairs), len(r.numbers), most)
	}
}
