package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// scripts is where the conformance scripts live, relative to the root.
const scripts = "stress/conform/testdata"

// citations is where each rule is cited.
type citations struct {
	spec     spec
	citation *regexp.Regexp
	tested   map[string][]string // by rule: places in tests and scripts
	products map[string][]string // by rule: places in all else
	unknown  []string            // citations of rules and sections that do not exist
}

// section is a citation of a whole section.
var section = regexp.MustCompile(`\bSPEC section ([0-9]+[a-z]?)\b`)

// caseRules is the rules= option of a script's case.
var caseRules = regexp.MustCompile(`^case\s+\S+\s.*?\brules=(\S+)`)

// newCitations: a citation is a list of rules at the start of a comment's line,
// behind the word SPEC, or behind an opening bracket. That it ends at a word's
// end keeps F1 out of F16.
func newCitations(s spec) citations {
	rule := `[` + s.letters() + `][0-9]+\b`
	return citations{
		spec: s, tested: make(map[string][]string), products: make(map[string][]string),
		citation: regexp.MustCompile(`(?:^|\bSPEC |\()(` + rule + `(?:(?:, | and |\.\.)` + rule + `)*)`),
	}
}

// gather reads every Go file, script and text below root. Tests and scripts hold
// the project to the rules that they cite; every citation must name a rule.
func gather(root string, s spec) (citations, error) {
	cited := newCitations(s)
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			hidden := rel != "." && rel != ".ci" && strings.HasPrefix(entry.Name(), ".")
			foreign := entry.Name() == "testdata" && rel != scripts && !strings.HasPrefix(rel, scripts+"/")
			if hidden || foreign || rel == "out" || rel == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		switch ext := filepath.Ext(rel); {
		case ext == ".kiln" && strings.HasPrefix(rel, scripts+"/"):
			return cited.script(name, rel)
		case ext == ".go":
			return cited.source(name, rel)
		case ext == ".md" && rel != specFile, rel == "Makefile", strings.HasPrefix(rel, ".ci/"):
			return cited.text(name, rel)
		}
		return nil
	})
	return cited, err
}

// cite notes that place names rule; a test or script holds the project to it.
func (c *citations) cite(rule, place string, test bool) {
	switch {
	case !slices.Contains(c.spec.rules, rule):
		c.unknown = append(c.unknown, fmt.Sprintf("%s: %s is no rule of %s", place, rule, specFile))
	case test:
		c.tested[rule] = append(c.tested[rule], place)
	default:
		c.products[rule] = append(c.products[rule], place)
	}
}

func (c *citations) script(name, rel string) error {
	return eachLine(name, rel, func(line, place string) {
		if found := caseRules.FindStringSubmatch(line); found != nil {
			for rule := range strings.SplitSeq(found[1], ",") {
				c.cite(rule, place, true)
			}
		}
	})
}

func (c *citations) text(name, rel string) error {
	return eachLine(name, rel, func(line, place string) {
		c.line(strings.TrimLeft(line, "#*->| "), place, false, nil)
	})
}

func (c *citations) source(name, rel string) error {
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	test := strings.HasSuffix(rel, "_test.go")
	names := make(map[string]bool) // a comment on the type F32 cites no rule
	ast.Inspect(syntax, func(n ast.Node) bool {
		if n, ok := n.(*ast.Ident); ok {
			names[n.Name] = true
		}
		return true
	})
	for _, group := range syntax.Comments {
		for _, comment := range group.List {
			for i, line := range strings.Split(strings.Trim(comment.Text, "/*"), "\n") {
				place := fmt.Sprintf("%s:%d", rel, set.Position(comment.Pos()).Line+i)
				c.line(strings.TrimSpace(line), place, test, names)
			}
		}
	}
	return nil
}

var separator = regexp.MustCompile(`, | and |\.\.`)

// line finds the citations of one line; those that are names of the file are none.
func (c *citations) line(line, place string, test bool, names map[string]bool) {
	for _, found := range c.citation.FindAllStringSubmatch(line, -1) {
		for _, rule := range separator.Split(found[1], -1) {
			if !names[rule] {
				c.cite(rule, place, test)
			}
		}
	}
	for _, found := range section.FindAllStringSubmatch(line, -1) {
		if !c.spec.sections[found[1]] {
			c.unknown = append(c.unknown, fmt.Sprintf("%s: %s has no section %s", place, specFile, found[1]))
		}
	}
}

func eachLine(name, rel string, visit func(line, place string)) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(text), "\n") {
		visit(strings.TrimSpace(line), fmt.Sprintf("%s:%d", rel, i+1))
	}
	return nil
}
