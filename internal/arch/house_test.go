package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var pointer = regexp.MustCompile("`([a-z0-9_/]+\\.go)(?::([A-Za-z0-9_.]+))?`")

// What the documents point to is there: `file.go`, `file.go:Func`, `file.go:Type.Method`.
func TestDocumentsPointToWhatIsThere(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d documents, %v", len(names), err)
	}
	pointed := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range pointer.FindAllStringSubmatch(string(text), -1) {
			pointed++
			has, err := declared(filepath.Join(root, filepath.FromSlash(found[1])))
			if err != nil {
				t.Errorf("%s: %v", filepath.Base(name), err)
			} else if found[2] != "" && !has[found[2]] {
				t.Errorf("%s: %s declares no %s", filepath.Base(name), found[1], found[2])
			}
		}
	}
	if pointed < 50 {
		t.Errorf("%d places in the documents: the form that this test reads has changed", pointed)
	}
}

var refused = regexp.MustCompile(`\*\*([A-Z][A-Za-z]+)\*\*`)

// The words that docs/HOUSE.md says are refused are those that are.
func TestHouseNamesTheRefusedWords(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "HOUSE.md"))
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, found := range refused.FindAllStringSubmatch(string(text), -1) {
		said = append(said, found[1])
	}
	slices.Sort(said)
	if want := slices.Sorted(maps.Keys(Renamed)); !slices.Equal(said, want) {
		t.Errorf("docs/HOUSE.md says %q, refused are %q", said, want)
	}
}

// declared are the functions and methods of a file.
func declared(name string) (map[string]bool, error) {
	syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	has := make(map[string]bool)
	for _, d := range syntax.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		called := f.Name.Name
		if f.Recv != nil {
			receiver := f.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			switch generic := receiver.(type) {
			case *ast.IndexExpr:
				receiver = generic.X
			case *ast.IndexListExpr:
				receiver = generic.X
			}
			if id, ok := receiver.(*ast.Ident); ok {
				called = strings.Join([]string{id.Name, called}, ".")
			}
		}
		has[called] = true
	}
	return has, nil
}
