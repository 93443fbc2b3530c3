package arch

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the import path of the tree that is checked.
const Module = "github.com/kiln-cache/kiln"

// Violation is one place that breaks a check.
type Violation struct {
	Check string // its name, as in "arrow"
	File  string // slash-separated, relative to the tree's root; a folder where the package is at fault
	Line  int    // 0 where the file or folder as a whole is meant
	What  string
}

func (v Violation) String() string {
	where := v.File
	if v.Line > 0 {
		where += ":" + strconv.Itoa(v.Line)
	}
	return fmt.Sprintf("%s: %s: %s", where, v.Check, v.What)
}

// Tree is every Go file below a root, parsed.
type Tree struct {
	root  string
	fset  *token.FileSet
	files []file
}

type file struct {
	path      string // relative to the root, slash-separated
	dir       string // of path; "." for the root
	lines     int
	test      bool
	generated bool
	syntax    *ast.File
}

// Load parses the tree at root. Like the go command it passes over testdata,
// vendor, hidden folders and modules of their own.
func Load(root string) (*Tree, error) {
	t := &Tree{root: root, fset: token.NewFileSet()}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name != root && passedOver(name, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		return t.parse(name)
	})
	return t, err
}

func passedOver(name, base string) bool {
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(name, "go.mod"))
	return err == nil
}

func (t *Tree) parse(name string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(t.root, name)
	if err != nil {
		return err
	}
	rel = filepath.ToSlash(rel)
	syntax, err := parser.ParseFile(t.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	t.files = append(t.files, file{
		path: rel, dir: path.Dir(rel), lines: bytes.Count(text, []byte("\n")),
		test: strings.HasSuffix(rel, "_test.go"), generated: ast.IsGenerated(syntax), syntax: syntax,
	})
	return nil
}

// Check runs the checks that need syntax only; violations come sorted by place.
func (t *Tree) Check() []Violation {
	var found []Violation
	for _, f := range t.files {
		found = append(found, t.imports(f)...)
		found = append(found, t.statements(f)...)
		found = append(found, t.library(f)...)
	}
	found = append(found, t.sizes()...)
	found = append(found, t.docs()...)
	sortByPlace(found)
	return found
}

func sortByPlace(found []Violation) {
	slices.SortFunc(found, func(a, b Violation) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Check+a.What, b.Check+b.What)
	})
}

func (t *Tree) at(check string, f file, pos token.Pos, format string, args ...any) Violation {
	return Violation{Check: check, File: f.path, Line: t.fset.Position(pos).Line, What: fmt.Sprintf(format, args...)}
}

// within reports whether dir is one of the rooms or lies below one.
func within(dir string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool {
		return dir == room || strings.HasPrefix(dir, room+"/")
	})
}
