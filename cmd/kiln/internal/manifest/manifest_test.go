package manifest_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/manifest"
	"github.com/kiln-cache/kiln/fault"
)

// S9: what was recorded is read back, dearest first.
func TestRoundTrip(t *testing.T) {
	items := []manifest.Item{
		{Backend: "cpu", Op: "gelu rows=1 width=2", Shape: "[[1,1]]", Cost: 0.5, Uses: 2},
		{Backend: "cpu", Op: "tanh rows=1 width=2", Cost: 0.1, Uses: 100},
	}
	var b bytes.Buffer
	if err := manifest.Write(&b, slices.Clone(items)); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n \r\n") // as editors leave behind
	got, err := manifest.Read("m", &b)
	if err != nil || !slices.Equal(got, []manifest.Item{items[1], items[0]}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestBadInput(t *testing.T) {
	const head = `{"kiln_manifest":1}` + "\n"
	for text, line := range map[string]string{
		"":                         "m:1",
		"\x00\x01":                 "m:1",
		`{"kiln_manifest":2}`:      "m:1",
		head + "nonsense":          "m:2",
		head + `{"backend":"cpu"}`: "m:2: op is empty: want",
		head + `{"op":"x"}`:        "m:2: backend is empty: want",
		head + `{"backend":"cpu","op":"x","cost":-1}`:   "m:2: cost is -1: want 0 or more",
		head + `{"backend":"cpu","op":"x","uses":-1}`:   "m:2: uses is -1: want 0 or more",
		head + `{"backend":"cpu","op":"x","unknown":1}`: "m:2",
		head + `{"backend":"cpu","op":"x","uses":1} {}`: "m:2",
		head + `{"backend":"cpu","op":"x","uses":1}]`:   "m:2",
		`{"kiln_manifest":1}}`:                          "m:1",
		head + strings.Repeat("x", 1<<21):               "m:2: a line of more than",
	} {
		_, err := manifest.Read("m", strings.NewReader(text))
		if !errors.Is(err, fault.ErrInvalid) || !strings.HasPrefix(err.Error(), line) {
			t.Errorf("%.40q: %v, want %s", text, err, line)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add("{\"kiln_manifest\":1}\n{\"backend\":\"cpu\",\"op\":\"x\",\"shape\":\"[[1]]\",\"cost\":1,\"uses\":2}\n")
	f.Fuzz(func(t *testing.T, text string) {
		items, err := manifest.Read("m", strings.NewReader(text))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := manifest.Write(&b, items); err != nil {
			t.Fatal(err)
		}
		if again, err := manifest.Read("m", &b); err != nil || len(again) != len(items) {
			t.Errorf("%d items became %d, %v", len(items), len(again), err)
		}
	})
}
