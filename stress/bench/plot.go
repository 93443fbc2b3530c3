package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kiln-cache/kiln/internal/picture"
)

// The picture: a panel for each number of entries, a row for each contender, a
// mark for each number of goroutines on a logarithmic scale of nanoseconds.
const (
	rowHeight = 0.36 * vg.Inch
	panelWide = 6 * vg.Inch
	nameWide  = 3.1 * vg.Inch
	margin    = 0.35 * vg.Inch
	headHigh  = 1.25 * vg.Inch
	footHigh  = 0.45 * vg.Inch
	markSize  = 4.2 * vg.Length(1)
)

var (
	tint   = color.NRGBA{0xff, 0xf4, 0xea, 0xff} // behind our rows
	series = []color.NRGBA{{0xd6, 0x5f, 0x1e, 0xff}, {0x1f, 0x6f, 0xb4, 0xff}, {0x3a, 0x8f, 0x4d, 0xff}, {0x84, 0x4f, 0xa6, 0xff}}
)

// writePlot draws the hits.
func writePlot(path string, m machine, figures []figure) error {
	p := newChart(m, figures)
	width := 2*margin + nameWide + vg.Length(len(p.entries))*(panelWide+margin)
	height := 2*margin + headHigh + footHigh + vg.Length(len(p.rows))*rowHeight
	return picture.Write(path, width, height, p.draw)
}

type chart struct {
	m         machine
	hits      []figure
	entries   []int
	counts    []int // of goroutines
	rows      []string
	ours      map[string]bool
	low, high float64 // ns, powers of ten
}

func newChart(m machine, figures []figure) *chart {
	p := &chart{m: m, ours: make(map[string]bool), low: math.Inf(1)}
	for _, f := range figures {
		if f.Kind != "hit" || f.Bench == emptyLoop {
			continue // a scale down to the loop would leave the rest little room
		}
		p.hits = append(p.hits, f)
		p.entries = with(p.entries, f.Entries)
		p.counts = with(p.counts, f.Goroutines)
		p.rows = with(p.rows, f.Bench)
		p.ours[f.Bench] = f.ours
		p.low, p.high = min(p.low, f.NS.Min), max(p.high, f.NS.Max)
	}
	p.low, p.high = math.Pow(10, math.Floor(math.Log10(p.low))), math.Pow(10, math.Ceil(math.Log10(p.high)))
	return p
}

// with is the list with the item at its end, if it is new.
func with[T comparable](list []T, item T) []T {
	if slices.Contains(list, item) {
		return list
	}
	return append(list, item)
}

func (p *chart) draw(c draw.Canvas) {
	top := c.Max.Y - margin - headHigh
	p.head(c)
	for r, name := range p.rows {
		y := top - (vg.Length(r)+0.5)*rowHeight
		if p.ours[name] {
			row := vg.Rectangle{Min: vg.Point{X: c.Min.X + margin/2, Y: y - rowHeight/2}}
			row.Max = vg.Point{X: c.Max.X - margin/2, Y: y + rowHeight/2}
			c.SetColor(tint)
			c.Fill(row.Path())
		}
		label := picture.Style(13, picture.Ink, p.ours[name])
		label.XAlign, label.YAlign = text.XRight, text.YCenter
		c.FillText(label, vg.Point{X: c.Min.X + margin + nameWide - 0.15*vg.Inch, Y: y}, name)
	}
	for i, entries := range p.entries {
		left := c.Min.X + margin + nameWide + vg.Length(i)*(panelWide+margin)
		p.panel(c, entries, left, top)
	}
}

// head writes what is shown, where it was measured, and the legend.
func (p *chart) head(c draw.Canvas) {
	x, y := c.Min.X+margin, c.Max.Y-margin
	c.FillText(picture.Style(22, picture.Ink, true), vg.Point{X: x, Y: y - 0.22*vg.Inch}, "A lookup that hits, in nanoseconds")
	detail := fmt.Sprintf("%s, %d processors, %s; medians and reach of %d interleaved rounds", p.m.Processor, p.m.Processors, p.m.Go, p.m.Rounds)
	c.FillText(picture.Style(13, picture.Muted, false), vg.Point{X: x, Y: y - 0.48*vg.Inch}, detail)
	y -= 0.78 * vg.Inch
	label := picture.Style(13, picture.Ink, false)
	legend := func(words string, mark draw.GlyphDrawer, of color.Color) {
		c.DrawGlyph(draw.GlyphStyle{Color: of, Radius: markSize, Shape: mark}, vg.Point{X: x + markSize, Y: y + 0.05*vg.Inch})
		c.FillText(label, vg.Point{X: x + 4*markSize, Y: y}, words)
		x += label.Width(words) + 9*markSize
	}
	for i, n := range p.counts {
		legend(plural(n, "goroutine"), draw.CircleGlyph{}, series[i%len(series)])
	}
	legend("alone", draw.CircleGlyph{}, picture.Muted)
	legend("beside a writer, with evictions", draw.RingGlyph{}, picture.Muted)
}

// panel draws the marks of one number of entries, its scale below and its title
// above.
func (p *chart) panel(c draw.Canvas, entries int, left, top vg.Length) {
	bottom := top - vg.Length(len(p.rows))*rowHeight
	at := func(ns float64) vg.Length {
		return left + vg.Length(math.Log10(ns/p.low)/math.Log10(p.high/p.low))*panelWide
	}
	tick := picture.Style(12, picture.Muted, false)
	tick.XAlign = text.XCenter
	for ns := p.low; ns <= p.high*1.01; ns *= 10 {
		c.StrokeLine2(draw.LineStyle{Color: picture.Faint, Width: 1}, at(ns), bottom, at(ns), top)
		if ns*10 <= p.high*1.01 { // the last label would run into the next panel
			c.FillText(tick, vg.Point{X: at(ns), Y: bottom - 0.22*vg.Inch}, scale(ns))
		}
	}
	c.FillText(picture.Style(15, picture.Ink, true), vg.Point{X: left, Y: top + 0.12*vg.Inch}, grouped(entries)+" entries")
	for _, f := range p.hits {
		if f.Entries != entries {
			continue
		}
		row, line := slices.Index(p.rows, f.Bench), slices.Index(p.counts, f.Goroutines)
		of := series[line%len(series)]
		// A row has a line for each number of goroutines; with and without a writer on the same.
		y := top - vg.Length(row)*rowHeight - rowHeight*vg.Length(line+1)/vg.Length(len(p.counts)+1)
		thin := of
		thin.A = 0x70
		c.StrokeLine2(draw.LineStyle{Color: thin, Width: 1.2}, at(f.NS.Min), y, at(f.NS.Max), y)
		var mark draw.GlyphDrawer = draw.CircleGlyph{}
		if f.Writers {
			mark = draw.RingGlyph{}
		}
		c.DrawGlyph(draw.GlyphStyle{Color: of, Radius: markSize * 0.75, Shape: mark}, vg.Point{X: at(f.NS.Median), Y: y})
	}
}

// scale labels a power of ten of nanoseconds.
func scale(ns float64) string {
	switch {
	case ns >= 1e6:
		return fmt.Sprintf("%g ms", ns/1e6)
	case ns >= 1e3:
		return fmt.Sprintf("%g us", ns/1e3)
	}
	return fmt.Sprintf("%g ns", math.Round(ns*1e3)/1e3)
}
