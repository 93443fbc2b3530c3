package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	total := flag.String("total", "", "also write the closing line to this `file`")
	flag.Parse()
	t, err := read(os.Stdin, os.Stdout)
	if err == nil && *total != "" {
		err = os.WriteFile(*total, []byte(t.String()+"\n"), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	}
	if t.skipped > 0 {
		fmt.Printf("%d skipped, each named above\n", t.skipped)
	}
	fmt.Println(t)
	if t.failed > 0 || t.passed == 0 {
		os.Exit(1)
	}
}

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

type tally struct {
	passed, failed, skipped int

	output map[string]*strings.Builder // of a test or package that has not ended
	broken map[string]bool             // packages with a failed test
}

func (t *tally) String() string {
	return fmt.Sprintf("%d passed, %d failed", t.passed, t.failed)
}

// read counts what r says and writes the readable form of it to w.
func read(r io.Reader, w io.Writer) (*tally, error) {
	t := &tally{output: make(map[string]*strings.Builder), broken: make(map[string]bool)}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if line[0] == '{' && json.Unmarshal(line, &e) == nil && e.Action != "" {
				t.take(e, w)
			} else {
				fmt.Fprintf(w, "%s", line)
			}
		}
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return t, err
		}
	}
}

func (t *tally) take(e event, w io.Writer) {
	// Of a test and its subtests the output is kept together; a failed build
	// has no package yet.
	test, _, isSub := strings.Cut(e.Test, "/")
	key := e.Package + e.ImportPath + " " + test
	switch e.Action {
	case "output", "build-output":
		if t.output[key] == nil {
			t.output[key] = new(strings.Builder)
		}
		t.output[key].WriteString(e.Output)
		return
	case "pass", "fail", "skip", "build-fail":
	default:
		return
	}
	if isSub {
		return
	}
	if e.Action != "pass" && (test != "" || e.Action != "skip") { // a package without tests says nothing of use
		if kept := t.output[key]; kept != nil {
			fmt.Fprint(w, kept)
		}
	}
	delete(t.output, key)
	if e.Action == "fail" && test == "" { // and what ran when it ended, of itself: a fatal error ends no test
		for running, kept := range t.output {
			if strings.HasPrefix(running, e.Package+" ") {
				fmt.Fprint(w, kept)
				delete(t.output, running)
			}
		}
	}
	if e.Action == "build-fail" {
		return // the package that it stops fails too
	}
	if test == "" {
		t.finish(e, w)
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
	case "fail":
		t.failed++
		t.broken[e.Package] = true
	}
}

// finish ends a package.
func (t *tally) finish(e event, w io.Writer) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(w, "ok    %s  %.1fs\n", e.Package, e.Elapsed)
	case "fail":
		fmt.Fprintf(w, "FAIL  %s  %.1fs\n", e.Package, e.Elapsed)
		if !t.broken[e.Package] {
			t.failed++
		}
	}
}
