package report

import (
	"fmt"
	"image/color"
	"math"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/picture"
)

// The picture is 16:9, 1920 pixels wide.
const (
	plotWidth  = 16 * vg.Inch
	plotHeight = 9 * vg.Inch

	margin      = 0.4 * vg.Inch
	headHeight  = 1.5 * vg.Inch // settings, legend and the upper titles
	axisWidth   = 0.6 * vg.Inch
	axisHeight  = 0.5 * vg.Inch
	titleHeight = 0.45 * vg.Inch
	titleRise   = 0.12 * vg.Inch // of a title above its panel
	gapX        = 0.2 * vg.Inch

	footPoints = 10.5
	footHeight = 0.3 * vg.Inch

	plotBins   = 60
	plotPoints = 4000 // dots drawn for a pass

	// Latencies are drawn on these decades, so that the pictures of two runs can be laid
	// side by side; what is outside stands on the border.
	fastest = 0.1    // ms
	slowest = 10_000 // ms
)

// words explains what the picture says, in one line below it.
const words = "held reference: kept by the caller; shape group: by name; session: by shape and name; artefact cache: by content; disk, fleet: stored; " +
	"compiled: made now. Dot: a request, coloured by its slowest answer. p99: 99 of 100 were as fast."

func (l level) rgb(alpha uint8) color.Color {
	return color.NRGBA{l.color[0], l.color[1], l.color[2], alpha}
}

// Plot draws hits by level and latency over time as a PNG: the first pass on the
// left and, if there are more, the last one on the right. Recorders are in the
// order of the run's passes. The file appears whole or not at all.
func Plot(path string, run *Run, recorders []*Recorder) error {
	if err := picture.Check(path); err != nil {
		return err
	}
	if len(run.Passes) == 0 || len(recorders) != len(run.Passes) {
		return fault.Invalidf("report: plot", "%d passes and %d recorders; give one for each of at least one pass", len(run.Passes), len(recorders))
	}
	return picture.Write(path, plotWidth, plotHeight, newChart(run, recorders).draw)
}

// chart is what is drawn: a column for each pass, on common scales so that
// the columns can be compared by eye.
type chart struct {
	run     *Run
	columns []column
	seconds float64 // of the longest pass, rounded up to 1, 2 or 5 times a power of ten
}

type column struct {
	pass    *Pass
	bins    []bin
	samples []Sample
}

func newChart(run *Run, recorders []*Recorder) *chart {
	p := &chart{run: run}
	shown := []int{0}
	if last := len(run.Passes) - 1; last > 0 {
		shown = append(shown, last)
	}
	for _, i := range shown {
		c := column{&run.Passes[i], recorders[i].bins(plotBins), thin(recorders[i].byTime(), plotPoints)}
		for _, b := range c.bins {
			p.seconds = max(p.seconds, b.to.Seconds())
		}
		p.columns = append(p.columns, c)
	}
	p.seconds = roundUp(max(p.seconds, 1e-3))
	return p
}

// roundUp gives the next of 1, 2 and 5 times a power of ten: runs that take about as
// long have one scale.
func roundUp(v float64) float64 {
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if v <= step*decade {
			return step * decade
		}
	}
	return 10 * decade
}

func (p *chart) draw(c draw.Canvas) {
	p.head(draw.Crop(c, margin, -margin, plotHeight-margin-headHeight, -margin))
	n := len(p.columns)
	width := (plotWidth - 2*margin - axisWidth - vg.Length(n-1)*(axisWidth+gapX)) / vg.Length(n)
	height := (plotHeight - 2*margin - headHeight - 2*axisHeight - titleHeight - footHeight) / 2
	c.FillText(picture.Style(footPoints, picture.Muted, false), vg.Point{X: margin, Y: margin}, words)
	for i, col := range p.columns {
		left := margin + axisWidth + vg.Length(i)*(width+axisWidth+gapX)
		lower := vg.Rectangle{Min: vg.Point{X: left, Y: margin + footHeight + axisHeight}}
		lower.Max = lower.Min.Add(vg.Point{X: width, Y: height})
		upper := lower.Add(vg.Point{Y: height + axisHeight + titleHeight})
		l := col.pass.Latency
		panel(c, upper, p.levelsPlot(i), fmt.Sprintf("%s pass: %s lookups answered in %.3g s, %s", col.pass.Name, count(col.pass.Hits.Total()), col.pass.Seconds, plural(int(col.pass.Compiles), "compile")))
		panel(c, lower, p.latencyPlot(i), fmt.Sprintf("%s pass: p50 %s, p99 %s, max %s", col.pass.Name, millis(l.P50), millis(l.P99), millis(l.Max)))
	}
}

// panel draws a plot so that its data fill the rectangle, whatever room its
// axes take, with a title above. (plot.Align and a plot's own title would leave
// the rows unequal.)
func panel(c draw.Canvas, data vg.Rectangle, pl *plot.Plot, title string) {
	at := draw.Canvas{Canvas: c.Canvas, Rectangle: data}
	for range 3 { // the axes' room depends a little on the size: it settles at once
		inner := pl.DataCanvas(at)
		at.Min = at.Min.Add(data.Min.Sub(inner.Min))
		at.Max = at.Max.Add(data.Max.Sub(inner.Max))
	}
	pl.Draw(at)
	c.FillText(picture.Style(15, picture.Ink, true), vg.Point{X: data.Min.X, Y: data.Max.Y + titleRise}, title)
}

// head writes the run's settings and the legend across the top.
func (p *chart) head(c draw.Canvas) {
	r := p.run
	c.FillText(picture.Style(24, picture.Ink, true), vg.Point{X: c.Min.X, Y: c.Max.Y - 0.3*vg.Inch}, r.Model+" on "+r.Device)
	detail := fmt.Sprintf("%s requests a pass, %s, %s shape groups each, policy %s, bucket %s",
		count(int64(r.Passes[0].Requests)), plural(r.Sessions, "session"), groups(r.Groups), r.Policy, r.Bucket)
	c.FillText(picture.Style(14, picture.Muted, false), vg.Point{X: c.Min.X, Y: c.Max.Y - 0.58*vg.Inch}, detail)
	x, y := c.Min.X, c.Max.Y-0.92*vg.Inch
	label := picture.Style(13, picture.Ink, false)
	for i, l := range levels {
		if !p.uses(i) {
			continue
		}
		const box = 0.15 * vg.Inch
		c.FillPolygon(l.rgb(0xff), []vg.Point{{X: x, Y: y}, {X: x + box, Y: y}, {X: x + box, Y: y + box}, {X: x, Y: y + box}})
		c.FillText(label, vg.Point{X: x + 1.5*box, Y: y + 0.02*vg.Inch}, l.name)
		x += 2.7*box + label.Width(l.name)
	}
}

// uses tells whether any pass shown got an answer from this level.
func (p *chart) uses(level int) bool {
	for _, c := range p.columns {
		for _, b := range c.bins {
			if b.perLevel[level] > 0 {
				return true
			}
		}
	}
	return false
}

func (p *chart) levelsPlot(i int) *plot.Plot {
	c := p.columns[i]
	pl := p.empty()
	if i == 0 {
		pl.Y.Label.Text = "% of the lookups, by level"
	}
	base := make([]float64, len(c.bins))
	for l := range levels {
		outline := make(plotter.XYs, 0, 4*len(c.bins))
		for k, b := range c.bins {
			top := base[k] + b.perLevel[l]
			outline = append(outline, plotter.XY{X: b.from.Seconds(), Y: top}, plotter.XY{X: b.to.Seconds(), Y: top})
		}
		for k := len(c.bins) - 1; k >= 0; k-- {
			outline = append(outline, plotter.XY{X: c.bins[k].to.Seconds(), Y: base[k]}, plotter.XY{X: c.bins[k].from.Seconds(), Y: base[k]})
			base[k] += c.bins[k].perLevel[l]
		}
		if p.uses(l) {
			pl.Add(&plotter.Polygon{XYs: []plotter.XYs{outline}, Color: levels[l].rgb(0xff)})
		}
	}
	pl.Y.Min, pl.Y.Max = 0, 100 // sums may be a bit above
	return pl
}

func (p *chart) latencyPlot(i int) *plot.Plot {
	c := p.columns[i]
	pl := p.empty()
	pl.X.Label.Text = "seconds since the pass began"
	pl.Y.Min, pl.Y.Max = fastest, slowest
	pl.Y.Scale = plot.LogScale{}
	pl.Y.Tick.Marker = plot.TickerFunc(decadeTicks)
	if i == 0 {
		pl.Y.Label.Text = "latency, ms (line: median)"
	}
	for l := range levels { // the deeper ones on top
		var dots plotter.XYs
		for _, s := range c.samples {
			if deepest(s) == l {
				dots = append(dots, plotter.XY{X: s.At.Seconds(), Y: drawn(s.Latency)})
			}
		}
		if len(dots) > 0 {
			pl.Add(&plotter.Scatter{XYs: dots, GlyphStyle: draw.GlyphStyle{Color: levels[l].rgb(0x8c), Radius: vg.Points(1.8), Shape: draw.CircleGlyph{}}})
		}
	}
	var median plotter.XYs
	for _, b := range c.bins {
		if b.requests > 0 {
			median = append(median, plotter.XY{X: (b.from + b.to).Seconds() / 2, Y: drawn(b.median)})
		}
	}
	pl.Add(&plotter.Line{XYs: median, LineStyle: draw.LineStyle{Color: picture.Ink, Width: vg.Points(1.6)}})
	return pl
}

// drawn is where a latency stands, in ms.
func drawn(d time.Duration) float64 { return min(max(milliseconds(d), fastest), slowest) }

// empty is a plot in the picture's look.
func (p *chart) empty() *plot.Plot {
	pl := plot.New()
	pl.BackgroundColor = nil // its canvas reaches into the neighbour's axis
	pl.X.Min, pl.X.Max = 0, p.seconds
	for _, a := range []*plot.Axis{&pl.X, &pl.Y} {
		a.LineStyle = draw.LineStyle{Color: picture.Muted, Width: vg.Points(0.75)}
		a.Tick.LineStyle = a.LineStyle
		a.Tick.Label.Font, a.Tick.Label.Color = picture.Style(12, picture.Muted, false).Font, picture.Muted
		a.Label.TextStyle.Font, a.Label.TextStyle.Color = picture.Style(13, picture.Muted, false).Font, picture.Muted
		a.Padding = 0
	}
	grid := plotter.NewGrid()
	grid.Vertical = draw.LineStyle{}
	grid.Horizontal = draw.LineStyle{Color: picture.Faint, Width: vg.Points(0.75)}
	pl.Add(grid)
	return pl
}

// decadeTicks labels the powers of ten.
func decadeTicks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for v := low; v <= high*1.0001; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
		for k := 2.0; k < 10 && k*v < high; k++ {
			ticks = append(ticks, plot.Tick{Value: k * v})
		}
	}
	return ticks
}
