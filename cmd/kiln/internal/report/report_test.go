package report_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/limit"
)

// The fields are a contract with scripts: names, order and nesting.
func TestJSON(t *testing.T) {
	run := &report.Run{Groups: limit.Unlimited, Passes: []report.Pass{{Name: "cold"}}}
	var b bytes.Buffer
	if err := run.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	const want = `{"version":"","device":"","model":"","policy":"","bucket":"","groups":"unlimited","sessions":0,"passes":[{"name":"cold","requests":0,` +
		`"truncated":0,"errors":0,"seconds":0,"latency_ms":{"p50":0,"p90":0,"p99":0,"max":0},"hits":{"held":0,"group":0,"session":0,"artefact":0,"disk":0,` +
		`"fleet":0},"joined":0,"compiles":0,"compile_seconds":0,"seconds_saved":0,"groups_evicted":0,"thrash":0,"groups_resident":0,"resident_bytes":0,` +
		`"constants":{"entries":0,"bytes":0,"hits":0,"owners":0,"bypass":0},"padding":{"useful":0,"padded":0},"peak_rss_bytes":0,"output_sha256":"","max_abs_error":0}]}` + "\n"
	if b.String() != want {
		t.Errorf("got  %swant %s", b.String(), want)
	}
	if got, err := json.Marshal(limit.Of(0)); err != nil || string(got) != "0" {
		t.Errorf("no group is %s, %v", got, err) // 0 disables and is not unlimited, G2
	}
}

// Percentiles are those of the latencies themselves, not of a histogram, in
// whatever order and from whatever goroutines they came.
func TestLatencyIsExact(t *testing.T) {
	const n = 1000
	rec := report.NewRecorder(n)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < n; i += 4 {
				rec.Record(i, report.Sample{Latency: time.Duration((i*7919)%n+1) * time.Millisecond, Hits: report.Hits{Held: 1, Fleet: 2}})
			}
		})
	}
	wg.Wait()
	if got, want := rec.Latency(), (report.Latency{P50: 500, P90: 900, P99: 990, Max: 1000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := rec.Hits(), (report.Hits{Held: n, Fleet: 2 * n}); got != want || got.Total() != 3*n {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, c := range []struct {
		n         int
		p50, p99  float64
		wantedMax float64
	}{{1, 1, 1, 1}, {2, 1, 2, 2}, {3, 2, 3, 3}, {101, 51, 100, 101}} {
		rec := report.NewRecorder(c.n)
		for i := range c.n {
			rec.Record(i, report.Sample{Latency: time.Duration(i+1) * time.Millisecond})
		}
		if l := rec.Latency(); l.P50 != c.p50 || l.P99 != c.p99 || l.Max != c.wantedMax {
			t.Errorf("of %d: %+v", c.n, l)
		}
	}
	part := report.NewRecorder(9) // the others failed, or were not asked
	part.Record(3, report.Sample{Latency: time.Second})
	if l := part.Latency(); l != (report.Latency{P50: 1000, P90: 1000, P99: 1000, Max: 1000}) {
		t.Errorf("of one: %+v", l)
	}
	for _, n := range []int{0, 2} {
		if got := report.NewRecorder(n).Latency(); got != (report.Latency{}) {
			t.Errorf("of none: %+v", got)
		}
	}
}

func TestText(t *testing.T) {
	pass := func(name string) report.Pass {
		return report.Pass{
			Name: name, Requests: 3000, Seconds: 20.5, Latency: report.Latency{P50: 9.125, P90: 20, P99: 150.4, Max: 1234.5},
			Hits: report.Hits{Held: 1234567, Group: 42}, CompileSeconds: 0.25, SecondsSaved: 61.3, GroupsResident: 99,
			ResidentBytes: 5 << 20, Constants: report.Constants{Bytes: 42 << 20, Owners: 37, Hits: 100},
			Padding: report.Padding{Useful: 1000, Padded: 1045}, OutputSHA256: strings.Repeat("ab", 32), MaxAbsError: 3.2e-7,
		}
	}
	run := &report.Run{Device: "cpu", Model: "minilm_l6_h384", Policy: "duel", Bucket: "geometric:8", Groups: limit.Of(64), Sessions: 4, Passes: []report.Pass{pass("cold"), pass("warm")}}
	run.Passes[0].Compiles = 1800
	text := func() string {
		var b bytes.Buffer
		if err := run.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	got := text()
	for _, want := range []string{
		"minilm_l6_h384 on cpu · 4 sessions · 64 shape groups each · policy duel · bucket geometric:8",
		"  per second                         146           146\n",
		"  p50                            9.12 ms", "  max                           1,235 ms",
		"  held reference               1,234,567     1,234,567\n",
		"  artefacts compiled               1,800             0\n",
		"  time compiling                  250 ms", "  had each hit been compiled        61.3 s",
		"  prepared weights              42.0 MiB", "  padding added                   4.50 %",
		"outputs: the same bits in all passes, sha256 abababababababab...\nchecked on a sample: at most 3.2e-07 from a float64 reference\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "failed") || strings.Contains(got, "not shared") || strings.Contains(got, "thrash") {
		t.Errorf("rows without anything to say in\n%s", got)
	}
	run.Groups, run.Passes[1].Errors = limit.Unlimited, 7
	run.Passes[0].Thrash, run.Passes[1].Thrash = 4, 1
	run.Passes[1].OutputSHA256 = strings.Repeat("cd", 32)
	got = text()
	for _, want := range []string{"unlimited shape groups", "  failed                               0             7\n", "  served                           3,000         2,993\n", "\nsessions gave 5 thrash warnings, more shapes are in use than groups fit: raise --groups or choose a coarser --bucket, see kiln shapes advise\n",
		"outputs DIFFER: pass cold has sha256 abababababababab, pass warm has cdcdcdcdcdcdcdcd"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if run.Rounds = true; !strings.HasSuffix(text(), "outputs: rounded by each form of an operation in its way\nchecked on a sample: at most 3.2e-07 from a float64 reference\n") {
		t.Errorf("of a device whose forms round differently: %s", text())
	}
	run.Rounds = false
	run.Passes[1].Interrupted, run.Passes[1].OutputSHA256 = true, ""
	if got := text(); !strings.Contains(got, "   warm (part)\n") || !strings.Contains(got, "outputs: sha256 abababababababab...\n") {
		t.Errorf("of a pass that was cut off: %s", got)
	}
	for _, passes := range [][]report.Pass{nil, run.Passes[1:]} {
		run.Passes = passes
		if got := text(); !strings.Contains(got, "outputs: not checked, no pass ran to its end") {
			t.Errorf("of %d passes: %s", len(passes), got)
		}
	}
}

// A line of the log wipes the progress, which is drawn anew below it.
func TestProgressBesideTheLog(t *testing.T) {
	var b bytes.Buffer
	p := report.ProgressTo(&b)
	p.Note("ready")
	fmt.Fprint(p, "a\n")
	fmt.Fprint(p, "b\n")
	p.Note("go")
	if got, want := b.String(), "\rready"+"\r     \r"+"a\n"+"b\n"+"\rgo"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// On anything but a terminal there is no progress.
func TestProgressOnAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	p := report.NewProgress(f)
	p.Update("cold", 5, 10, time.Unix(1, 0))
	p.Note("compiling")
	p.Clear()
	if b, err := os.ReadFile(path); err != nil || len(b) > 0 {
		t.Errorf("wrote %q, %v", b, err)
	}
	fmt.Fprint(p, "a warning\n")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "a warning\n" {
		t.Errorf("wrote %q, %v", b, err)
	}
}

func TestProgressLine(t *testing.T) {
	var b bytes.Buffer
	p := report.ProgressTo(&b)
	start := time.Unix(100, 0)
	p.Update("cold", 0, 2000, start)
	p.Update("cold", 10, 2000, start.Add(50*time.Millisecond)) // too soon
	p.Update("cold", 500, 2000, start.Add(5*time.Second))
	p.Note("compiling")
	p.Update("cold", 2000, 2000, start.Add(5001*time.Millisecond)) // the end is always drawn
	p.Clear()
	var lines []string
	for l := range strings.SplitSeq(b.String(), "\r") {
		if l = strings.TrimRight(l, " "); l != "" {
			lines = append(lines, l)
		}
	}
	want := []string{
		"cold  " + strings.Repeat("░", 24) + "  0 of 2,000",
		"cold  " + strings.Repeat("█", 6) + strings.Repeat("░", 18) + "  500 of 2,000  100/s  15s left",
		"compiling",
		"cold  " + strings.Repeat("█", 24) + "  2,000 of 2,000  400/s  0s left",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if !strings.HasSuffix(b.String(), "\r") || strings.Contains(b.String(), "\n") {
		t.Errorf("the line is not left empty: %q", b.String())
	}
}
