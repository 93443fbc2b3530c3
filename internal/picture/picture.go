// Package picture is the look that the project's pictures share, and how they
// become files. All functions are safe for concurrent use.
package picture

import (
	"image/color"
	"io"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/outfile"
)

const dpi = 120

// The colours of text and lines, from the strongest to the faintest.
var (
	Ink   = color.NRGBA{0x22, 0x2b, 0x35, 0xff}
	Muted = color.NRGBA{0x6b, 0x77, 0x85, 0xff}
	Faint = color.NRGBA{0xe3, 0xe7, 0xec, 0xff}
)

// Check refuses, as fault.ErrInvalid, a path that Write could not write to: one
// that does not end in .png, or that outfile.Check refuses.
func Check(path string) error {
	if !strings.EqualFold(filepath.Ext(path), ".png") {
		return fault.Invalidf("picture", "%q does not end in .png; the picture is a PNG", path)
	}
	return outfile.Check(path)
}

// Write draws on a white canvas and writes it to a file as a PNG. The file appears
// whole or not at all.
func Write(path string, width, height vg.Length, paint func(draw.Canvas)) error {
	canvas := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))
	paint(draw.New(canvas))
	return outfile.Write(path, 0o644, func(w io.Writer) error {
		_, err := vgimg.PngCanvas{Canvas: canvas}.WriteTo(w)
		return err
	})
}

// Style is the sans-serif font in a size, colour and weight.
func Style(points float64, of color.Color, bold bool) draw.TextStyle {
	f := font.From(plot.DefaultFont, vg.Points(points))
	f.Variant = "Sans"
	if bold {
		f.Weight = 3 // x/image/font.WeightBold
	}
	return draw.TextStyle{Color: of, Font: f, Handler: plot.DefaultTextHandler}
}
