package env_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/env"
)

// A name that begins as Kiln's do and is none of them is told apart from those
// that are, and from what is others'. The nearest name is at most two edits away.
func TestStrays(t *testing.T) {
	for name, nearest := range map[string]string{
		"KILN_STORE_CAPACTIY":  "KILN_STORE_CAPACITY", // two letters that changed places
		"KILN_STORE_CAPACIT":   "KILN_STORE_CAPACITY",
		"KILN_STORE_CAPACITYS": "KILN_STORE_CAPACITY",
		"KILN_STORE_CAPACITIE": "KILN_STORE_CAPACITY",
		"KILN_STOR_CAPACIT":    "KILN_STORE_CAPACITY",
		"KILN_STOR_CAPACI":     "", // three
		"KILN_STORE_DI":        "KILN_STORE_DIR",
		"KILN_STORE_DIRRRR":    "",
		"KILN_BUCKTE":          "KILN_BUCKET",
		"KILN_CPU_ASI":         "KILN_CPU_ISA",
		"KILN_bucket":          "",
		"KILN_":                "",
		"KILN_TOKEN":           "",

		"ONEDNN_PRIMITIVE_CACHE_CAPACTIY":            "ONEDNN_PRIMITIVE_CACHE_CAPACITY",
		"DNNL_PRIMITVE_CACHE_CAPACITY":               "DNNL_PRIMITIVE_CACHE_CAPACITY",
		"ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACIT": "ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY",
	} {
		got := env.Strays([]string{name})
		if want := []env.Stray{{Name: name, Nearest: nearest}}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	var known []string
	for _, r := range env.Table(read(nil)) {
		known = append(append(known, r.Name), r.Also...)
	}
	others := []string{"PATH", "KILN", "KILNSTORE_DIR", "kiln_store_dir", "MY_KILN_BUCKET", "",
		"ONEDNN_VERBOSE", "ONEDNN_MAX_CPU_ISA", "DNNL_JIT_DUMP", "ONEDNN_", "PRIMITIVE_CACHE_CAPACITY"}
	if got := env.Strays(append(known, others...)); got != nil {
		t.Errorf("taken for misspelt: %v", got)
	}
	got := env.Strays([]string{"KILN_Z", "KILN_BUCKET", "KILN_A", "KILN_Z"})
	if want := []env.Stray{{Name: "KILN_A"}, {Name: "KILN_Z"}}; !slices.Equal(got, want) {
		t.Errorf("%v, want each once, sorted", got)
	}
}

// The line and the row of a stray name it and what may be meant, whatever its
// name holds; its value is nobody's business.
func TestStrayIsShown(t *testing.T) {
	t.Setenv("KILN_BUCKTE", "secret")
	stray := env.Stray{Name: "KILN_BUCKTE", Nearest: "KILN_BUCKET"}
	if all := env.Strays(env.Names()); !slices.Contains(all, stray) {
		t.Fatalf("%v", all)
	}
	if line := stray.String(); !strings.Contains(line, `"KILN_BUCKTE"`) || !strings.Contains(line, "KILN_BUCKET?") {
		t.Errorf("%q", line)
	}
	row := stray.Row()
	if row.Name != "KILN_BUCKTE" || row.Source != env.Unknown || row.Value != "" || row.Default != "" || row.Nearest != "KILN_BUCKET" || row.Help == "" {
		t.Errorf("%+v", row)
	}
	var text strings.Builder
	if err := env.Print(&text, []env.Row{row, env.Stray{Name: "KILN_\t\x1b"}.Row()}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text.String(), "\n")
	if want := []string{"KILN_BUCKTE", "-", "unknown", "-"}; len(lines) != 4 || !slices.Equal(strings.Fields(lines[1])[:4], want) || !strings.Contains(lines[1], "KILN_BUCKET") {
		t.Errorf("%s", text.String())
	}
	if !strings.HasPrefix(lines[2], `"KILN_\t\x1b" `) || strings.Contains(lines[2], "meant") {
		t.Errorf("%q", lines[2])
	}
	for _, name := range []string{"KILN_" + strings.Repeat("X", 1<<16), "KILN_\n\x1b[31m", "KILN_\xff"} {
		if line := env.Strays([]string{name})[0].String(); len(line) > 200 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == '\ufffd' }) {
			t.Errorf("%.40q: %q", name, line)
		}
	}
}
