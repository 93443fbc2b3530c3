package main

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed pending.txt
var pendingList string

func main() {
	root := "."
	switch len(os.Args) {
	case 1:
	case 2:
		root = os.Args[1]
	default:
		fmt.Fprintln(os.Stderr, "rules: want at most one argument, the root of the tree")
		os.Exit(2)
	}
	os.Exit(run(root, os.Stdout, os.Stderr))
}

// run is the command without the process around it; it gives the exit code.
func run(root string, stdout, stderr io.Writer) int {
	wrong, pending, rules, err := check(root)
	if err != nil {
		fmt.Fprintln(stderr, "rules:", err)
		return 2
	}
	return report(stdout, wrong, rules-pending, pending)
}

func check(root string) (wrong []string, pending, rules int, err error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(specFile)))
	if err != nil {
		return nil, 0, 0, err
	}
	s, err := parseSpec(string(text))
	if err != nil {
		return nil, 0, 0, err
	}
	waiting, err := parsePending(pendingList)
	if err != nil {
		return nil, 0, 0, err
	}
	cited, err := gather(root, s)
	if err != nil {
		return nil, 0, 0, err
	}
	return judge(waiting, cited), len(waiting), len(s.rules), nil
}

func report(w io.Writer, wrong []string, due, pending int) int {
	for _, line := range wrong {
		fmt.Fprintln(w, line)
	}
	if len(wrong) > 0 {
		return 1
	}
	fmt.Fprintf(w, "%d rules are cited, %d are pending\n", due, pending)
	return 0
}

// parsePending reads lines of a rule and the reason why it waits.
func parsePending(text string) (map[string]string, error) {
	pending := make(map[string]string)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		rule, reason, _ := strings.Cut(line, " ")
		if strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("pending.txt: %s has no reason: write one behind it", rule)
		}
		if _, twice := pending[rule]; twice {
			return nil, fmt.Errorf("pending.txt: %s stands there twice", rule)
		}
		pending[rule] = reason
	}
	return pending, nil
}

// judge says what is wrong with each rule, in the order of the specification,
// and then with each citation.
func judge(pending map[string]string, cited citations) []string {
	var wrong []string
	for _, rule := range cited.spec.rules {
		_, waits := pending[rule]
		places := cited.tested[rule]
		switch {
		case waits && len(places) > 0:
			wrong = append(wrong, fmt.Sprintf("%s is pending and yet cited by %s: take it out of pending.txt", rule, places[0]))
		case !waits && len(places) == 0:
			wrong = append(wrong, rule+" is cited by no conformance script and no test")
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(pending)) {
		if !slices.Contains(cited.spec.rules, rule) {
			wrong = append(wrong, rule+" is pending and no rule of "+specFile)
		}
	}
	return append(wrong, cited.unknown...)
}
