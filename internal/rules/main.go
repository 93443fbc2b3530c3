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
	switch args := os.Args[1:]; {
	case len(args) == 0:
		os.Exit(run(".", os.Stdout, os.Stderr))
	case len(args) == 2 && args[0] == "-where":
		os.Exit(where(".", args[1], os.Stdout, os.Stderr))
	case len(args) == 1 && args[0] != "-where":
		os.Exit(run(args[0], os.Stdout, os.Stderr))
	}
	fmt.Fprintln(os.Stderr, "rules: want the root of the tree, or -where and a rule, or nothing")
	os.Exit(2)
}

// where prints the places that cite a rule: first the code, then tests and scripts.
func where(root, rule string, stdout, stderr io.Writer) int {
	cited, err := read(root)
	if err == nil && !slices.Contains(cited.spec.rules, rule) {
		err = fmt.Errorf("%s is no rule of %s", rule, specFile)
	}
	if err != nil {
		fmt.Fprintln(stderr, "rules:", err)
		return 2
	}
	for _, place := range slices.Concat(cited.products[rule], cited.tested[rule]) {
		fmt.Fprintln(stdout, place)
	}
	return 0
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

// read gives the citations of the tree at root.
func read(root string) (citations, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(specFile)))
	if err != nil {
		return citations{}, err
	}
	s, err := parseSpec(string(text))
	if err != nil {
		return citations{}, err
	}
	return gather(root, s)
}

func check(root string) (wrong []string, pending, rules int, err error) {
	waiting, err := parsePending(pendingList)
	if err != nil {
		return nil, 0, 0, err
	}
	cited, err := read(root)
	if err != nil {
		return nil, 0, 0, err
	}
	return judge(waiting, cited), len(waiting), len(cited.spec.rules), nil
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
