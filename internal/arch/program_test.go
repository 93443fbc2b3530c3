package arch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A Program is the module with its types resolved: each package as products
// import it, and each package of tests.
type Program struct {
	root     string
	fset     *token.FileSet
	packages []*unit
}

// unit is one package of the module, checked from its source.
type unit struct {
	path  string
	dir   string // relative to the root; "." for the root
	test  bool   // only the files of tests count: the rest is another unit's
	files []*ast.File
	pkg   *types.Package
	info  *types.Info
}

// listing is what the go command says of a package.
type listing struct {
	ImportPath, Name, Export, Dir      string
	DepOnly                            bool
	GoFiles, TestGoFiles, XTestGoFiles []string
	Error                              *struct{ Err string }
}

// list compiles the module at root and lists its packages and all they import.
func list(root string) ([]listing, error) {
	var said bytes.Buffer
	const fields = "-json=ImportPath,Name,Export,DepOnly,Error,Dir,GoFiles,TestGoFiles,XTestGoFiles"
	command := exec.Command("go", "list", "-e", "-export", "-deps", fields, "./...")
	command.Dir, command.Stderr = root, &said
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, said.Bytes())
	}
	var all []listing
	for stream := json.NewDecoder(bytes.NewReader(text)); stream.More(); {
		var p listing
		if err := stream.Decode(&p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}

// compiled is what the compiler wrote down, by import path.
func compiled(listed []listing) map[string]string {
	files := make(map[string]string)
	for _, p := range listed {
		files[p.ImportPath] = p.Export
	}
	return files
}

// reader reads packages as the compiler wrote them down.
func reader(fset *token.FileSet, files map[string]string) types.Importer {
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("%s is not compiled", path)
		}
		return os.Open(files[path])
	})
}

// LoadProgram reads the module at root for the platform it runs on, its tests
// included. Products must compile. Of a test, what does not resolve is passed
// over: it is checked against the products as they are imported, so it does not
// see the names that other files of tests add to them.
func LoadProgram(root string) (*Program, error) {
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	listed, err := list(absolute)
	if err != nil {
		return nil, err
	}
	p := &Program{root: absolute, fset: token.NewFileSet()}
	read := reader(p.fset, compiled(listed))
	for _, l := range listed {
		if l.DepOnly {
			continue
		}
		if l.Error != nil {
			return nil, fmt.Errorf("%s: %s", l.ImportPath, l.Error.Err)
		}
		for _, u := range []*unit{
			{path: l.ImportPath},
			{path: l.ImportPath, test: true},
			{path: l.ImportPath + "_test", test: true},
		} {
			names := l.GoFiles
			switch {
			case strings.HasSuffix(u.path, "_test"):
				names = l.XTestGoFiles
			case u.test && len(l.TestGoFiles) > 0:
				names = slices.Concat(l.GoFiles, l.TestGoFiles)
			case u.test:
				continue
			}
			if len(names) == 0 {
				continue
			}
			if err := p.check(u, l.Dir, names, read); err != nil {
				return nil, err
			}
			p.packages = append(p.packages, u)
		}
	}
	return p, nil
}

// check parses the files of u and resolves what they name.
func (p *Program) check(u *unit, dir string, names []string, read types.Importer) error {
	u.info = &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object),
		Defs: make(map[*ast.Ident]types.Object),
	}
	rel, err := filepath.Rel(p.root, dir)
	if err != nil {
		return err
	}
	u.dir = filepath.ToSlash(rel)
	for _, base := range names {
		text, err := os.ReadFile(filepath.Join(dir, base))
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(p.fset, path.Join(u.dir, base), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		u.files = append(u.files, syntax)
	}
	config := types.Config{Importer: read, Sizes: types.SizesFor("gc", "amd64")}
	if u.test {
		config.Error = func(error) {} // and go on
	}
	u.pkg, err = config.Check(u.path, p.fset, u.files, u.info)
	if err != nil && !u.test {
		return err
	}
	return nil
}

// counted are the files of u that no other unit has.
func (p *Program) counted(u *unit) []*ast.File {
	if !u.test {
		return u.files
	}
	var tests []*ast.File
	for _, f := range u.files {
		if strings.HasSuffix(p.fset.Position(f.Package).Filename, "_test.go") {
			tests = append(tests, f)
		}
	}
	return tests
}

// name is what a function or method is called in the whole module, whichever
// unit speaks of it: "path.Func" or "path.Type.Method".
func name(f *types.Func) string {
	f = f.Origin()
	if f.Pkg() == nil {
		return f.Name()
	}
	where := f.Pkg().Path()
	if receiver := f.Signature().Recv(); receiver != nil {
		if t := named(receiver.Type()); t != nil {
			return where + "." + t.Obj().Name() + "." + f.Name()
		}
	}
	return where + "." + f.Name()
}

// named is the declared type of t or of what t points to; nil where there is none.
func named(t types.Type) *types.Named {
	t = types.Unalias(t)
	if pointer, ok := t.(*types.Pointer); ok {
		t = types.Unalias(pointer.Elem())
	}
	n, _ := t.(*types.Named)
	return n
}

func (p *Program) at(check string, pos token.Pos, format string, args ...any) Violation {
	place := p.fset.Position(pos)
	return Violation{Check: check, File: place.Filename, Line: place.Line, What: fmt.Sprintf(format, args...)}
}
