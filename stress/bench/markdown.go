package main

import (
	"fmt"
	"io"
	"strings"
)

// printMarkdown writes the hits as README has them: for each contender the ratio to the
// reference, a median [least, most]. The columns are the numbers of goroutines at the
// first number of entries, the last of them beside a writer, and one for each further
// number of entries.
func printMarkdown(to io.Writer, s settings, figures []figure) error {
	first, few, most := s.entries[0], s.goroutines[0], s.goroutines[len(s.goroutines)-1]
	var columns []figure // as far as they tell a column
	heads := []string{fmt.Sprintf("a lookup that hits, in times a `%s`'s with the full key", reference)}
	column := func(entries, goroutines int, writers bool, head string) {
		f := figure{Kind: "hit", Entries: entries, Writers: writers}
		f.Goroutines = goroutines
		columns, heads = append(columns, f), append(heads, head)
	}
	for _, g := range s.goroutines {
		column(first, g, false, plural(g, "goroutine"))
	}
	column(first, most, true, fmt.Sprintf("%d beside a writer, with evictions", most))
	for _, entries := range s.entries[1:] {
		column(entries, few, false, fmt.Sprintf("%d, %s entries", few, grouped(entries)))
	}
	var rows []string
	cells := make(map[string][]string) // by row
	for _, c := range columns {
		for _, f := range figures {
			if f.Kind != c.Kind || f.Entries != c.Entries || f.Writers != c.Writers || f.Goroutines != c.Goroutines || f.Bench == reference || f.Bench == emptyLoop {
				continue
			}
			name := f.Bench
			if f.ours {
				name = "**" + name + "**"
			}
			rows = with(rows, name)
			cells[name] = append(cells[name], fmt.Sprintf("%s [%s, %s]", short(f.Ratio), short(f.Min), short(f.Max)))
		}
	}
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(heads)
	b.WriteString(strings.Repeat("|---", len(heads)) + "|\n")
	for _, name := range rows {
		line(append([]string{name}, cells[name]...))
	}
	_, err := io.WriteString(to, b.String())
	return err
}
