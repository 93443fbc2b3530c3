package report

import (
	"io"

	"gonum.org/v1/plot/vg"

	"github.com/kiln-cache/kiln/internal/picture"
)

// Axes are the scales of a run's picture: seconds, and the borders of each panel's
// upright axis.
func Axes(run *Run, recorders []*Recorder) (axes [5]float64) {
	p := newChart(run, recorders)
	levels, latency := p.levelsPlot(0), p.latencyPlot(0)
	return [5]float64{p.seconds, levels.Y.Min, levels.Y.Max, latency.Y.Min, latency.Y.Max}
}

// Room is how much wider the picture is than the words below it.
func Room() vg.Length {
	return plotWidth - 2*margin - picture.Style(footPoints, picture.Muted, false).Width(words)
}

// Words are what stands below the picture; Levels, the names of the legend.
func Words() string { return words }

func Levels() (names []string) {
	for _, l := range levels {
		names = append(names, l.name)
	}
	return names
}

// ProgressTo draws on w as if it were a terminal.
func ProgressTo(w io.Writer) *Progress { return &Progress{to: w, terminal: true} }
