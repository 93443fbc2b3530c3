package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// every is the least time between two drawings of the progress line.
const every = 100 * time.Millisecond

// Progress is one line that is drawn over itself, on terminals only: written to
// anything else it stays silent. Safe for concurrent use.
type Progress struct {
	to       io.Writer
	terminal bool

	mu    sync.Mutex // of what follows
	drawn time.Time
	width int // of what is on the line now
	pass  string
	begun time.Time
}

// NewProgress draws on w if that is a terminal.
func NewProgress(w io.Writer) *Progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &Progress{to: f, terminal: true}
	}
	return &Progress{to: w}
}

// Write puts text, whole lines of it, where the progress is drawn: on a line of
// its own, which the next drawing is below.
func (p *Progress) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
	return p.to.Write(text)
}

// Update draws how far a pass is, at most ten times a second.
func (p *Progress) Update(pass string, done, total int, now time.Time) {
	if !p.terminal {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
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
	p.drawLocked(line)
}

// Note draws a text instead, such as a compile that lasts.
func (p *Progress) Note(text string) {
	if p.terminal {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.drawLocked(text)
	}
}

// Clear wipes the line, so that something else can be written.
func (p *Progress) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clearLocked()
}

func (p *Progress) clearLocked() {
	if p.width > 0 {
		p.drawLocked("")
	}
}

func (p *Progress) drawLocked(line string) {
	width := len([]rune(line))
	// A terminal that cannot be written to costs its user the progress, not the run.
	_, _ = fmt.Fprintf(p.to, "\r%s%s", line, strings.Repeat(" ", max(0, p.width-width)))
	if p.width = width; width == 0 {
		_, _ = io.WriteString(p.to, "\r")
	}
}
