package main

import (
	"fmt"
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
	places  map[string][]string
	unknown []string // rules= of scripts that name no rule
}

// citation is a list of rules at the start of a comment's line, behind the
// word SPEC, or in brackets. That it ends at a word's end keeps F1 out of F16.
var citation = regexp.MustCompile(`(?:^|\bSPEC |\()((?:[A-Z]\d+\b)(?:(?:, | and )[A-Z]\d+\b)*)`)

// caseRules is the rules= option of a script's case.
var caseRules = regexp.MustCompile(`^case\s+\S+\s.*?\brules=(\S+)`)

// gather reads every script and every comment of every test below root.
func gather(root string, known []string) (citations, error) {
	cited := citations{places: make(map[string][]string)}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		switch {
		case entry.IsDir():
			hidden := rel != "." && strings.HasPrefix(entry.Name(), ".")
			foreign := entry.Name() == "testdata" && rel != scripts
			if hidden || foreign && !strings.HasPrefix(rel, scripts) {
				return filepath.SkipDir
			}
			return nil
		case strings.HasSuffix(rel, ".kiln") && strings.HasPrefix(rel, scripts+"/"):
			return cited.script(name, rel, known)
		case strings.HasSuffix(rel, "_test.go"):
			return cited.test(name, rel)
		}
		return nil
	})
	return cited, err
}

func (c *citations) script(name, rel string, known []string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for i, line := range strings.Split(string(text), "\n") {
		found := caseRules.FindStringSubmatch(strings.TrimSpace(line))
		if found == nil {
			continue
		}
		place := fmt.Sprintf("%s:%d", rel, i+1)
		for rule := range strings.SplitSeq(found[1], ",") {
			if !slices.Contains(known, rule) {
				c.unknown = append(c.unknown, fmt.Sprintf("%s: %s is no rule of rules.txt", place, rule))
				continue
			}
			c.places[rule] = append(c.places[rule], place)
		}
	}
	return nil
}

func (c *citations) test(name, rel string) error {
	set := token.NewFileSet()
	syntax, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, group := range syntax.Comments {
		for _, comment := range group.List {
			for i, line := range strings.Split(strings.Trim(comment.Text, "/*"), "\n") {
				place := fmt.Sprintf("%s:%d", rel, set.Position(comment.Pos()).Line+i)
				for _, found := range citation.FindAllStringSubmatch(strings.TrimSpace(line), -1) {
					for _, rule := range strings.Split(strings.ReplaceAll(found[1], " and ", ", "), ", ") {
						c.places[rule] = append(c.places[rule], place)
					}
				}
			}
		}
	}
	return nil
}
