package report

import "io"

// ProgressTo draws on w as if it were a terminal.
func ProgressTo(w io.Writer) *Progress { return &Progress{to: w, terminal: true} }
