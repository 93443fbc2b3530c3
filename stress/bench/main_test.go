package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRefusesBadFlags(t *testing.T) {
	for _, args := range [][]string{
		{"--entries", "1000"}, {"--entries", "0"}, {"--entries", ""}, {"--goroutines", "1,x"}, {"--goroutines", "0"},
		{"--rounds", "0"}, {"--slot", "1us"}, {"--plot", "picture.svg"}, {"--plot", "no/such/folder/p.png"}, {"--nope"}, {"rest"}, {"--json", "--markdown"},
	} {
		var out, errs bytes.Buffer
		err := run(t.Context(), args, &out, &errs)
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: error %v, want ErrInvalid", args, err)
		}
		if out.Len() > 0 {
			t.Errorf("%q: wrote %q", args, out.String())
		}
	}
}

// A path that no picture can be written to is refused before the work.
func TestRefusesAPictureInPlaceOfAFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "bench.png")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := parse([]string{"--plot", folder}, io.Discard); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a folder: %v", err)
	}
}

// A whole run, small: every row in the table and as a JSON line, and a picture,
// which is put where a link leads.
func TestRun(t *testing.T) {
	picture, link := filepath.Join(t.TempDir(), "bench.png"), filepath.Join(t.TempDir(), "link.png")
	if err := errors.Join(os.WriteFile(picture, nil, 0o600), os.Symlink(picture, link)); err != nil {
		t.Skip("no links here:", err)
	}
	var out, table bytes.Buffer
	err := run(t.Context(), []string{"--entries", "1024", "--goroutines", "1,2", "--rounds", "1", "--slot", "5ms", "--onednn", "", "--json", "--plot", link}, &out, &table)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	var m machine
	if err := json.Unmarshal([]byte(lines[0]), &m); err != nil || m.Go == "" || m.GOMAXPROCS == 0 {
		t.Errorf("first line %s: %v, %+v", lines[0], err, m)
	}
	rows := make(map[string]int)
	for _, line := range lines[1:] {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		rows[f.Bench]++
		if f.NS.Median <= 0 || f.N != 1 || f.Goroutines == 0 {
			t.Errorf("%s: incomplete", line)
		}
		if f.Bench == reference && f.Ratio != 1 {
			t.Errorf("%s is %g times itself", f.Bench, f.Ratio)
		}
	}
	// Two goroutine counts, alone and beside a writer; misses have no writer.
	for row, want := range map[string]int{
		keyKept: 4, keyBuilt: 4, reference: 4, "xsync.Map": 4, "otter v2": 4, "ristretto v2, digest + compare": 4, "theine": 4, "golang-lru v2": 4,
		emptyLoop: 2, promised: 2, "singleflight, looks again + sync.Map": 2,
	} {
		if rows[row] != want {
			t.Errorf("%d figures of %q, want %d", rows[row], row, want)
		}
		if !strings.Contains(table.String(), "\n  "+row+" ") {
			t.Errorf("the table has no row %q", row)
		}
	}
	for _, says := range []string{"1,024 entries, 2 goroutines", "misses, 1 goroutine", "oneDNN was not measured", "does not identify keys"} {
		if !strings.Contains(table.String(), says) {
			t.Errorf("the table does not say %q:\n%s", says, table.String())
		}
	}
	file, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := png.Decode(file); err != nil {
		t.Error(err)
	}
}

// README's table: a row for each contender but the reference and the loop, with as many
// columns as its head; the last column but one is beside a writer.
func TestMarkdown(t *testing.T) {
	at := func(name string, entries, goroutines int, writers, ours bool, ratio float64) figure {
		f := figure{Kind: "hit", Entries: entries, Writers: writers, ours: ours}
		f.Bench, f.Goroutines, f.Ratio, f.Min, f.Max = name, goroutines, ratio, ratio/2, 2*ratio
		return f
	}
	var figures []figure
	for _, f := range []struct {
		entries, goroutines int
		writers             bool
		ratio               float64
	}{{1024, 1, false, 0.02}, {1024, 1, true, 8}, {1024, 8, false, 0.5}, {1024, 8, true, 16}, {2048, 1, false, 1}, {2048, 8, false, 9}} {
		figures = append(figures, at("ours", f.entries, f.goroutines, f.writers, true, f.ratio), at(reference, f.entries, f.goroutines, f.writers, false, 1),
			at(emptyLoop, f.entries, f.goroutines, f.writers, false, 0.01), at("other", f.entries, f.goroutines, f.writers, false, 2*f.ratio))
	}
	var got strings.Builder
	if err := printMarkdown(&got, settings{entries: []int{1024, 2048}, goroutines: []int{1, 8}}, figures); err != nil {
		t.Fatal(err)
	}
	const want = "| a lookup that hits, in times a `sync.Map`'s with the full key | 1 goroutine | 8 goroutines | 8 beside a writer, with evictions | 1, 2,048 entries |\n" +
		"|---|---|---|---|---|\n" +
		"| **ours** | 0.020 [0.010, 0.040] | 0.50 [0.25, 1.00] | 16 [8.00, 32] | 1.00 [0.50, 2.00] |\n" +
		"| other | 0.040 [0.020, 0.080] | 1.00 [0.50, 2.00] | 32 [16, 64] | 2.00 [1.00, 4.00] |\n"
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", got.String(), want)
	}
}
