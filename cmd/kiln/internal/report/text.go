package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kiln-cache/kiln/limit"
)

// row is one line of the table.
type row struct {
	label string
	cell  func(*Pass) string
	shown func(*Pass) bool // nil: always; else where it is true for some pass
}

func number(label string, value func(*Pass) int64) row {
	return row{label: label, cell: func(p *Pass) string { return count(value(p)) }}
}

// rare is a row that is left out while its number is 0 in every pass.
func rare(label string, value func(*Pass) int64) row {
	r := number(label, value)
	r.shown = func(p *Pass) bool { return value(p) != 0 }
	return r
}

var sections = []struct {
	title string
	rows  []row
}{
	{"requests", []row{
		number("served", func(p *Pass) int64 { return int64(p.Requests - p.Errors) }),
		rare("failed", func(p *Pass) int64 { return int64(p.Errors) }),
		rare("cut to the model's limit", func(p *Pass) int64 { return int64(p.Truncated) }),
		{label: "wall time", cell: func(p *Pass) string { return seconds(p.Seconds) }},
		{label: "per second", cell: func(p *Pass) string { return rate(p) }},
	}},
	{"latency", []row{
		{label: "p50", cell: func(p *Pass) string { return millis(p.Latency.P50) }},
		{label: "p90", cell: func(p *Pass) string { return millis(p.Latency.P90) }},
		{label: "p99", cell: func(p *Pass) string { return millis(p.Latency.P99) }},
		{label: "max", cell: func(p *Pass) string { return millis(p.Latency.Max) }},
	}},
	{"lookups, by who answered", []row{
		number("held reference", func(p *Pass) int64 { return p.Hits.Held }),
		number("shape group", func(p *Pass) int64 { return p.Hits.Group }),
		number("session", func(p *Pass) int64 { return p.Hits.Session }),
		number("artefact cache", func(p *Pass) int64 { return p.Hits.Artefact }),
		number("store on disk", func(p *Pass) int64 { return p.Hits.Disk }),
		number("another process", func(p *Pass) int64 { return p.Hits.Fleet }),
		number("computation under way", func(p *Pass) int64 { return p.Joined }),
	}},
	{"compiling", []row{
		number("artefacts compiled", func(p *Pass) int64 { return p.Compiles }),
		{label: "time compiling", cell: func(p *Pass) string { return seconds(p.CompileSeconds) }},
		{label: "had each hit been compiled", cell: func(p *Pass) string { return seconds(p.SecondsSaved) }},
	}},
	{"memory", []row{
		number("shape groups held", func(p *Pass) int64 { return p.GroupsResident }),
		number("shape groups evicted", func(p *Pass) int64 { return p.GroupsEvicted }),
		{label: "compiled artefacts", cell: func(p *Pass) string { return size(p.ResidentBytes) }},
		{label: "prepared weights", cell: func(p *Pass) string { return size(p.Constants.Bytes) }},
		number("weights prepared", func(p *Pass) int64 { return p.Constants.Owners }),
		number("weights found prepared", func(p *Pass) int64 { return p.Constants.Hits }),
		rare("weights not shared", func(p *Pass) int64 { return p.Constants.Bypass }),
		{label: "padding added", cell: padding},
		{label: "process peak", cell: func(p *Pass) string { return size(p.PeakRSSBytes) }},
	}},
}

const (
	labelWidth = 26
	cellWidth  = 14
)

// WriteText writes the run as a table for people: one column a pass.
func (r *Run) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s · %s · %s shape groups each · policy %s · bucket %s\n\n",
		r.Model, r.Device, plural(r.Sessions, "session"), groups(r.Groups), r.Policy, r.Bucket)
	fmt.Fprintf(&b, "%-*s", labelWidth, "")
	for _, p := range r.Passes {
		name := p.Name
		if p.Interrupted {
			name += " (part)"
		}
		b.WriteString(right(name))
	}
	b.WriteByte('\n')
	for _, s := range sections {
		b.WriteString(s.title + "\n")
		for _, row := range s.rows {
			row.write(&b, r.Passes)
		}
	}
	b.WriteString("\n" + r.thrash() + r.verdict() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func (r row) write(b *strings.Builder, passes []Pass) {
	shown := r.shown == nil
	for i := range passes {
		shown = shown || r.shown(&passes[i])
	}
	if !shown {
		return
	}
	fmt.Fprintf(b, "  %-*s", labelWidth-2, r.label)
	for i := range passes {
		b.WriteString(right(r.cell(&passes[i])))
	}
	b.WriteByte('\n')
}

// thrash says what to do where sessions warned of thrashing, else nothing.
func (r *Run) thrash() string {
	warnings := 0
	for _, p := range r.Passes {
		warnings += int(p.Thrash)
	}
	if warnings == 0 {
		return ""
	}
	return fmt.Sprintf("sessions gave %s, more shapes are in use than groups fit: raise --groups or choose a coarser --bucket, see kiln shapes advise\n", plural(warnings, "thrash warning"))
}

// verdict says in a sentence whether the outputs can be trusted.
func (r *Run) verdict() string {
	whole := r.Passes
	if n := len(whole); n > 0 && whole[n-1].Interrupted {
		whole = whole[:n-1]
	}
	if len(whole) == 0 {
		return "outputs: not checked, no pass ran to its end"
	}
	first, worst, differ := whole[0].OutputSHA256, 0.0, false
	for _, p := range whole {
		if differ = differ || p.OutputSHA256 != first; differ && !r.Rounds {
			return fmt.Sprintf("outputs DIFFER: pass %s has sha256 %.16s, pass %s has %.16s", r.Passes[0].Name, first, p.Name, p.OutputSHA256)
		}
		worst = max(worst, p.MaxAbsError)
	}
	if differ {
		return fmt.Sprintf("outputs: rounded by each form of an operation in its way\nchecked on a sample: at most %.2g from a float64 reference", worst)
	}
	same := "outputs:"
	if len(whole) > 1 {
		same = "outputs: the same bits in all passes,"
	}
	return fmt.Sprintf("%s sha256 %.16s...\nchecked on a sample: at most %.2g from a float64 reference", same, first, worst)
}

func right(s string) string {
	return strings.Repeat(" ", max(1, cellWidth-utf8.RuneCountInString(s))) + s
}

// count writes thousands with commas.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// groups is a capacity in shape groups.
func groups(l limit.Limit) string {
	if n, counted := l.Value(); counted {
		return count(n)
	}
	return l.String()
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return count(int64(n)) + " " + what + "s"
}

func rate(p *Pass) string {
	if p.Seconds <= 0 {
		return "-"
	}
	return significant(float64(p.Requests-p.Errors) / p.Seconds)
}

// significant writes three figures and no exponent.
func significant(v float64) string {
	switch a := math.Abs(v); {
	case v == 0:
		return "0"
	case a >= 100:
		return count(int64(math.Round(v)))
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func millis(ms float64) string { return significant(ms) + " ms" }

func seconds(s float64) string {
	if s != 0 && math.Abs(s) < 1 {
		return millis(1000 * s)
	}
	return significant(s) + " s"
}

func size(bytes int64) string { return significant(float64(bytes)/(1<<20)) + " MiB" }

func padding(p *Pass) string {
	if p.Padding.Useful <= 0 {
		return "-"
	}
	return significant(100*float64(p.Padding.Padded-p.Padding.Useful)/float64(p.Padding.Useful)) + " %"
}
