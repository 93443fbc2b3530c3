package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/kiln-cache/kiln/internal/measure"
)

// printTable shows the figures to people: a block for each number of entries and
// goroutines, then the misses, then the notes.
func printTable(to io.Writer, m machine, figures []figure) error {
	var b strings.Builder
	m.print(&b)
	var block figure // of the last block's head
	for i, f := range figures {
		if f.Kind == "hit" && f.Writers {
			continue // shown with its quiet neighbour
		}
		if i == 0 || f.Kind != block.Kind || f.Entries != block.Entries || f.Goroutines != block.Goroutines {
			block = f
			b.WriteByte('\n')
			f.head(&b)
		}
		if f.Kind == "miss" {
			f.missRow(&b)
		} else {
			f.hitRow(&b, beside(figures, f))
		}
	}
	printNotes(&b, figures)
	_, err := io.WriteString(to, b.String())
	return err
}

func (m machine) print(b *strings.Builder) {
	fmt.Fprintf(b, "%s, %d processors (GOMAXPROCS %d), %s, %s\n", m.Processor, m.Processors, m.GOMAXPROCS, m.System, m.Go)
	b.WriteString(strings.ReplaceAll(strings.Join(m.Libraries, ", "), "github.com/", ""))
	if m.OneDNN != "" {
		fmt.Fprintf(b, ", oneDNN %s", m.OneDNN)
	}
	fmt.Fprintf(b, "\nmedians over %d interleaved rounds, slots of %s; the ratios count, the times are this machine's\n", m.Rounds, m.Slot)
}

// beside gives the figure of the same cell beside a writer; nil if there is none.
func beside(figures []figure, f figure) *figure {
	for i := range figures {
		if w := &figures[i]; w.Writers && w.Kind == f.Kind && w.Bench == f.Bench && w.Entries == f.Entries && w.Goroutines == f.Goroutines {
			return w
		}
	}
	return nil
}

const nameWidth = 38

func (f figure) head(b *strings.Builder) {
	what := fmt.Sprintf("%s entries, %s", grouped(f.Entries), plural(f.Goroutines, "goroutine"))
	if f.Kind == "miss" {
		what = "misses, " + plural(f.Goroutines, "goroutine")
		fmt.Fprintf(b, "%-*s %9s %17s %7s %7s %8s\n", nameWidth, what, "ns a name", "min-max", "x S", "allocs", "made")
		return
	}
	fmt.Fprintf(b, "%-*s %8s %17s %7s %8s %7s | beside a writer: %8s %17s %7s %8s %8s %6s\n", nameWidth, what,
		"ns", "min-max", "x S", "under D", "allocs", "ns", "min-max", "x S", "under D", "p99/p50", "hits")
}

func (f figure) missRow(b *strings.Builder) {
	fmt.Fprintf(b, "  %-*s %9s %17s %7s %7.1f %8.3f\n", nameWidth-2, f.Bench, nanoseconds(f.NS.Median), reach(f.NS), f.times(), f.Allocs, f.Made)
}

func (f figure) hitRow(b *strings.Builder, w *figure) {
	fmt.Fprintf(b, "  %-*s %8s %17s %7s %8s %7s |", nameWidth-2, f.Bench, nanoseconds(f.NS.Median), reach(f.NS), f.times(), f.under(), f.allocations())
	if w != nil {
		hits := fmt.Sprintf("%.1f%%", 100*w.Hits)
		if f.native {
			hits = "-" // it does not tell
		}
		fmt.Fprintf(b, " %25s %17s %7s %8s %8.1f %6s", nanoseconds(w.NS.Median), reach(w.NS), w.times(), w.under(), w.P99/w.P50, hits)
	}
	b.WriteByte('\n')
}

func (f figure) allocations() string {
	if f.native {
		return "-" // C's
	}
	return fmt.Sprintf("%.1f", f.Allocs)
}

// times is the ratio to S.
func (f figure) times() string { return short(f.Ratio) }

func (f figure) under() string {
	if f.UnderOneDNN == 0 {
		return "-"
	}
	return short(f.UnderOneDNN) + "x"
}

func reach(s measure.Spread) string { return nanoseconds(s.Min) + "-" + nanoseconds(s.Max) }

// short writes a ratio with two digits or more that count.
func short(x float64) string {
	switch {
	case x < 0.095:
		return fmt.Sprintf("%.3f", x)
	case x < 9.95:
		return fmt.Sprintf("%.2f", x)
	}
	return grouped(int(x + 0.5))
}

func nanoseconds(x float64) string {
	if x < 9.95 {
		return fmt.Sprintf("%.1f", x)
	}
	return grouped(int(x + 0.5))
}

func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

func plural(n int, what string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// printNotes says what the rows do not, and what each contender does not.
func printNotes(b *strings.Builder, figures []figure) {
	shown, noted := make(map[string]bool), make(map[string]bool)
	for _, f := range figures {
		shown[f.Bench] = true
	}
	b.WriteString("\nS: the row named so in the same block and round. ns: wall time over the lookups of all goroutines.\n")
	if shown[nativeKept] {
		fmt.Fprintf(b, "under D: how many times less than %q, whose key is kept as those of the lookups are; of %q: less than %q.\n", nativeKept, keyBuilt, nativeAllIn)
		b.WriteString("oneDNN in C with keys of its own: 128 matmuls (384 x 1536, bias, gelu) of 1,024 that its cache holds, whatever the entries of the others.\n")
	} else {
		b.WriteString("oneDNN was not measured: `make fetch-onednn` brings it.\n")
	}
	b.WriteString("beside a writer: one new key for 64 lookups, into a cache that is full. p99/p50: of batches of 64 lookups. hits: what was evicted comes back in the next slot.\n")
	for _, f := range figures {
		if f.note != "" && !noted[f.Bench] {
			noted[f.Bench] = true
			fmt.Fprintf(b, "%s: %s.\n", f.Bench, f.note)
		}
	}
}
