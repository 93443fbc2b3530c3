package data

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestSampleIsATrace(t *testing.T) {
	name, csv := Sample()
	if !strings.HasSuffix(name, ".csv") {
		t.Errorf("the sample is called %q, want a .csv", name)
	}
	lines := bytes.Split(bytes.TrimSuffix(csv, []byte("\n")), []byte("\n"))
	if string(lines[0]) != "t_ms,len,out,session" {
		t.Fatalf("header %q", lines[0])
	}
	lengths, sessions := map[string]bool{}, map[string]bool{}
	for _, l := range lines[1:] {
		f := strings.Split(string(l), ",")
		if len(f) != 4 {
			t.Fatalf("row %q has %d columns, want 4", l, len(f))
		}
		lengths[f[1]], sessions[f[3]] = true, true
	}
	// More lengths than the default 64 groups, or the exact bucketing would
	// never evict on the sample.
	if len(lines) < 1000 || len(lengths) <= 64 || len(sessions) < 100 {
		t.Errorf("%d rows, %d lengths, %d sessions: too few to drive the caches", len(lines)-1, len(lengths), len(sessions))
	}
}

func TestModels(t *testing.T) {
	want := []string{"bert_base_uncased", "bert_tiny_l2_h128", "minilm_l6_h384"}
	if got := Models(); !slices.Equal(got, want) {
		t.Fatalf("Models() = %v, want %v", got, want)
	}
	for _, name := range want {
		list, ok := Model(name)
		if !ok || !bytes.Contains(list[:200], []byte(`"model": "`+name+`"`)) {
			t.Errorf("Model(%q) is not that model's op list", name)
		}
		list[0] = 'x'
		if again, _ := Model(name); again[0] != '{' {
			t.Errorf("Model(%q) handed out its own bytes", name)
		}
	}
	for _, name := range []string{"", "nope", "../README", "minilm_l6_h384.jsonl"} {
		if _, ok := Model(name); ok {
			t.Errorf("Model(%q) found something", name)
		}
	}
}

// The licences of the sample (CC BY 4.0) and of the model structures
// (Apache-2.0) ask that the attribution stays with a copy.
func TestNoticeTravels(t *testing.T) {
	for _, want := range []string{"CC BY 4.0", "Kummerfeld", "Apache-2.0", "google-research/bert"} {
		if !strings.Contains(string(read("README.md")), want) {
			t.Errorf("the embedded notice does not mention %q", want)
		}
	}
}

func TestLengths(t *testing.T) {
	for name, lengths := range map[string][]int{"questions": Questions(), "sentences": Sentences()} {
		if len(lengths) != 300 || slices.Min(lengths) < 3 || slices.Max(lengths) > 128 {
			t.Errorf("%s: %d lengths, from %d to %d tokens", name, len(lengths), slices.Min(lengths), slices.Max(lengths))
		}
	}
}
