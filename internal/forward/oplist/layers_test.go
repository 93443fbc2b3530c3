package oplist_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// layers is a list like the smallest built-in model's with this many layers, which gives
// a row for each token.
func layers(t testing.TB, n int) []byte {
	t.Helper()
	const first, each = 5, 18 // operations before the layers, and of one
	lines := strings.SplitAfter(builtin(t, "bert_tiny_l2_h128"), "\n")[1:]
	text := &strings.Builder{}
	fmt.Fprintf(text, `{"model":"layers","dtype":"f32","symbols":{"B":"b","S":"s"},"ops":%d}`+"\n", first+n*each)
	for i := range first + n*each {
		from := i
		if i >= first {
			from = first + (i-first)%each
		}
		line := strings.ReplaceAll(lines[from], "layer_0", fmt.Sprintf("layer_%d", (i-first)/each))
		text.WriteString(strings.Replace(line, fmt.Sprintf(`"i": %d,`, from), fmt.Sprintf(`"i": %d,`, i), 1))
	}
	return []byte(text.String())
}

// A layer costs as much in a list of 256 as in one of 16, and dims that layers repeat are
// read once.
func TestParseGrowsWithTheLayers(t *testing.T) {
	cost := func(n int) float64 {
		text := layers(t, n)
		return testing.AllocsPerRun(1, func() {
			if _, err := oplist.Parse("layers", text); err != nil {
				t.Fatal(err)
			}
		}) / float64(n)
	}
	few, many := cost(16), cost(256)
	if many > few*1.05 {
		t.Errorf("a layer of 256 makes %.0f allocations, one of 16 %.0f", many, few)
	}
	if many > 4000 { // 5,600 where each text is read again
		t.Errorf("a layer makes %.0f allocations", many)
	}
}
