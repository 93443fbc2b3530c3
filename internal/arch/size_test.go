package arch

import (
	"fmt"
	"maps"
	"slices"
)

// The caps are no aim: a file is split where it holds several subjects, and a
// package where it has several responsibilities, long before it reaches them.
// Lower ones (400 lines, 15 files) made packages put unrelated subjects into one
// file because no sixteenth was allowed.
const (
	mostLines = 600 // in a file
	mostFiles = 25  // in a package, tests aside
)

// sizes finds files and packages that are too large to be read in one go.
// Generated files count in neither.
func (t *Tree) sizes() []Violation {
	var found []Violation
	counts := make(map[string]int)
	for _, f := range t.files {
		if f.generated {
			continue
		}
		if f.lines > mostLines {
			found = append(found, Violation{Check: "size", File: f.path, What: fmt.Sprintf("%d lines are more than %d: split it by subject", f.lines, mostLines)})
		}
		if !f.test {
			counts[f.dir]++
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[dir]; n > mostFiles {
			found = append(found, Violation{Check: "size", File: dir, What: fmt.Sprintf("%d files are more than %d: split the package by responsibility", n, mostFiles)})
		}
	}
	return found
}

// docs finds packages that do not say what they are.
func (t *Tree) docs() []Violation {
	documented := make(map[string]bool)
	for _, f := range t.files {
		if f.test {
			continue
		}
		documented[f.dir] = documented[f.dir] || f.syntax.Doc != nil
	}
	var found []Violation
	for _, dir := range slices.Sorted(maps.Keys(documented)) {
		if !documented[dir] {
			found = append(found, Violation{Check: "doc", File: dir, What: "the package has no doc comment: say what it owns"})
		}
	}
	return found
}
