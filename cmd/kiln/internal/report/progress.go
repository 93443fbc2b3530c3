package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// every is the least time between two drawings of the progress line.
const every = 100 * time.Millisecond

// Progress is one line that is drawn over itself, on terminals only: written to
// anything else it stays silent. One goroutine owns it.
type Progress struct {
	w     io.Writer // nil: not a terminal
	drawn time.Time
	width int // of what is on the line now
	pass  string
	begun time.Time
}

// NewProgress draws on w if that is a terminal.
func NewProgress(w io.Writer) *Progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &Progress{w: f}
	}
	return &Progress{}
}

// Update draws how far a pass is, at most ten times a second.
func (p *Progress) Update(pass string, done, total int, now time.Time) {
	if p.w == nil {
		return
	}
	if pass != p.pass {
		p.pass, p.begun, p.drawn = pass, now, time.Time{}
	}
	if done < total && now.Sub(p.drawn) < every {
		return
	}
	p.drawn = now
	const cells = 24
	full := 0
	if total > 0 {
		full = cells * done / total
	}
	line := fmt.Sprintf("%s  %s%s  %s of %s", pass, strings.Repeat("█", full), strings.Repeat("░", cells-full), count(int64(done)), count(int64(total)))
	if spent := now.Sub(p.begun).Seconds(); spent > 0 && done > 0 {
		perSecond := float64(done) / spent
		line += fmt.Sprintf("  %s/s  %s left", significant(perSecond), time.Duration(float64(total-done)/perSecond*float64(time.Second)).Round(time.Second))
	}
	p.draw(line)
}

// Note draws a text instead, such as a compile that lasts.
func (p *Progress) Note(text string) {
	if p.w != nil {
		p.draw(text)
	}
}

// Clear wipes the line, so that something else can be written.
func (p *Progress) Clear() {
	if p.w != nil && p.width > 0 {
		p.draw("")
	}
}

func (p *Progress) draw(line string) {
	width := len([]rune(line))
	// A terminal that cannot be written to costs its user the progress, not the run.
	_, _ = fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-width)))
	if p.width = width; width == 0 {
		_, _ = io.WriteString(p.w, "\r")
	}
}
