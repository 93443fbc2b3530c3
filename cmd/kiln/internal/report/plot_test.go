package report_test

import (
	"errors"
	"image"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/cmd/kiln/internal/report"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// replay makes a run in the likeness of a real one: two passes over lengths
// drawn from a seed, of which the first compiles what it has not seen.
func replay(requests int) (*report.Run, []*report.Recorder) {
	run := &report.Run{Version: "v0.0.0", Device: "cpu", Model: "minilm_l6_h384", Policy: "duel", Bucket: "geometric:8", Groups: limit.Of(64), Sessions: 4}
	var recorders []*report.Recorder
	seen := map[int32]bool{}
	for _, name := range []string{"cold", "warm"} {
		rec, at, pass := report.NewRecorder(requests), time.Duration(0), report.Pass{Name: name, Requests: requests}
		draw := rand.New(rand.NewPCG(1, uint64(len(recorders))))
		for i := range requests {
			n := draw.Int32N(1000)
			length := 2 + n*n/16000
			s := report.Sample{Hits: report.Hits{Held: 100, Group: 8, Session: 8}, Latency: time.Duration(4+length/3)*time.Millisecond + time.Duration(draw.IntN(1000))*4*time.Microsecond}
			if !seen[length] {
				seen[length] = true
				s.Hits, s.Compiles = report.Hits{Group: 80, Session: 8, Artefact: 10}, 18
				s.Latency += 60 * time.Millisecond
			}
			at += s.Latency / 2
			s.At = at
			rec.Record(i, s)
			pass.Compiles += s.Compiles
		}
		pass.Seconds, pass.Latency, pass.Hits = at.Seconds(), rec.Latency(), rec.Hits()
		run.Passes, recorders = append(run.Passes, pass), append(recorders, rec)
	}
	return run, recorders
}

func TestPlot(t *testing.T) {
	run, recorders := replay(1200)
	path := filepath.Join(t.TempDir(), "run.png")
	if err := report.Plot(path, run, recorders); err != nil {
		t.Fatal(err)
	}
	img := decode(t, path)
	if b := img.Bounds(); b.Dx() != 1920 || b.Dy() != 1080 {
		t.Errorf("%v, want 1920 x 1080", b)
	}
	// Left is the cold pass: only there is anything compiled. The upper half of
	// a column below the heading is the stack, the lower one the latencies.
	compiled, held := [3]uint8{0xd6, 0x45, 0x50}, [3]uint8{0x1f, 0x4e, 0x79}
	left, right := image.Rect(0, 200, 950, 1080), image.Rect(970, 200, 1920, 1080)
	if near(img, left, compiled) == 0 || near(img, right, compiled) != 0 {
		t.Errorf("compiled shows on %d pixels of the cold pass and %d of the warm one", near(img, left, compiled), near(img, right, compiled))
	}
	// A request that compiled is a red dot, half transparent.
	dot, lower := [3]uint8{0xe8, 0x99, 0x9f}, image.Rect(100, 640, 950, 1080)
	if near(img, lower, dot) == 0 {
		t.Error("no latency is marked as that of a compile")
	}
	if n := near(img, right, held); n < 5000 {
		t.Errorf("held references show on %d pixels of the warm pass", n)
	}
	// The words stand in a line below the axes, where nothing else does.
	line, bare := image.Rect(48, 1008, 1860, 1036), [3]uint8{0xff, 0xff, 0xff}
	if all := line.Dx() * line.Dy() / 4; near(img, line, bare) > all*95/100 {
		t.Errorf("%d of %d pixels below the axes are bare", near(img, line, bare), all)
	}
}

// Two runs of about the same length have the same axes, whatever their latencies and
// rates were.
func TestAxesAreFixed(t *testing.T) {
	runs := make([][5]float64, 3)
	for i := range runs {
		run, recorders := replay(1000 + 40*i)
		for _, r := range recorders {
			r.Record(7, report.Sample{At: time.Millisecond, Latency: []time.Duration{1, time.Second, time.Hour}[i], Hits: report.Hits{Held: 100_000 * int64(i)}})
		}
		runs[i] = report.Axes(run, recorders)
	}
	want := [5]float64{10, 0, 100, 0.1, 10_000}
	for i, got := range runs {
		if got != want {
			t.Errorf("run %d: axes %v, want %v", i, got, want)
		}
	}
}

// The words fit in their line, and every level of the legend is among them.
func TestWordsAreExplained(t *testing.T) {
	if room := report.Room(); room < 0 {
		t.Errorf("the line is %g points too long", -room.Points())
	}
	for _, l := range report.Levels() {
		if !strings.Contains(report.Words(), l) {
			t.Errorf("%q is not explained", l)
		}
	}
}

// near counts the pixels of about this colour, looking at every fourth.
func near(img image.Image, in image.Rectangle, want [3]uint8) int {
	n := 0
	for y := in.Min.Y; y < in.Max.Y; y += 2 {
		for x := in.Min.X; x < in.Max.X; x += 2 {
			r, g, b, _ := img.At(x, y).RGBA()
			far := 0.0
			for i, v := range []uint32{r, g, b} {
				far = max(far, math.Abs(float64(v>>8)-float64(want[i])))
			}
			if far < 10 {
				n++
			}
		}
	}
	return n
}

func decode(t *testing.T, path string) image.Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// Whatever a run was, it can be drawn: passes without a request or with one,
// more than two passes, requests that took no time, more than are drawn.
func TestPlotOddRuns(t *testing.T) {
	one, recorders := replay(1)
	one.Groups, one.Passes = limit.Unlimited, append(one.Passes, one.Passes[1])
	recorders = append(recorders, report.NewRecorder(0))
	for name, c := range map[string]struct {
		run *report.Run
		rec []*report.Recorder
	}{
		"few requests": {one, recorders},
		"no time":      {&report.Run{Passes: one.Passes[:1]}, []*report.Recorder{report.NewRecorder(4500)}},
	} {
		path := filepath.Join(t.TempDir(), "run.png")
		if err := report.Plot(path, c.run, c.rec); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		decode(t, path)
	}
}

func TestPlotErrors(t *testing.T) {
	run, recorders := replay(10)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "folder.png"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"ending":  filepath.Join(dir, "run.jpg"),
		"none":    "",
		"folder":  filepath.Join(dir, "none", "run.png"),
		"not one": filepath.Join(dir, "folder.png"),
	} {
		if err := report.Plot(path, run, recorders); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := report.Plot(filepath.Join(dir, "run.png"), run, recorders[:1]); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a recorder too few: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	hidden, err2 := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || err2 != nil || len(left) != 1 || len(hidden) != 0 || !strings.HasSuffix(left[0], "folder.png") {
		t.Errorf("left behind: %v %v", left, hidden)
	}
}
