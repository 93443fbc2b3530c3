package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// specFile is where the rules are written, relative to the root.
const specFile = "docs/SPEC.md"

// A spec is what docs/SPEC.md numbers.
type spec struct {
	rules    []string        // K1, K2, ... as they stand there
	sections map[string]bool // 1, 2, ... 6b
}

var (
	ruleLine    = regexp.MustCompile(`^- ([A-Z])([0-9]+)\. `)
	sectionLine = regexp.MustCompile(`^## ([0-9]+[a-z]?)\. .*\(([A-Z])\)$`)
)

// parseSpec reads the numbers of rules and sections. The rules of a section
// carry its letter and count from 1 without a gap.
func parseSpec(text string) (spec, error) {
	s := spec{sections: make(map[string]bool)}
	letter, last := "", 0
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if found := sectionLine.FindStringSubmatch(line); found != nil {
			if s.sections[found[1]] {
				return spec{}, fmt.Errorf("%s: section %s stands there twice", specFile, found[1])
			}
			s.sections[found[1]] = true
			letter, last = found[2], 0
		}
		if found := ruleLine.FindStringSubmatch(line); found != nil {
			if found[1] != letter || found[2] != strconv.Itoa(last+1) {
				return spec{}, fmt.Errorf("%s: %s%s: want %s%d here", specFile, found[1], found[2], letter, last+1)
			}
			last++
			s.rules = append(s.rules, found[1]+found[2])
		}
	}
	if len(s.rules) == 0 {
		return spec{}, fmt.Errorf("%s has no rules: want lines that begin like \"- K1. \"", specFile)
	}
	return s, nil
}

// letters are the first letters of the rules, each once.
func (s spec) letters() string {
	var letters string
	for _, rule := range s.rules {
		if !strings.Contains(letters, rule[:1]) {
			letters += rule[:1]
		}
	}
	return letters
}
