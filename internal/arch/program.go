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
	path  string // without the mark of a variant for tests
	dir   string // relative to the root; "." for the root
	test  bool   // only the files of tests count: the rest is another unit's
	files []*ast.File
	pkg   *types.Package
	info  *types.Info
}

// listing is what the go command says of a package.
type listing struct {
	ImportPath, Name, Export, Dir, ForTest string
	DepOnly                                bool
	GoFiles                                []string
	ImportMap                              map[string]string
	Error                                  *struct{ Err string }
}

// list compiles the module at root and lists its packages and all they import.
func list(root string, flags ...string) ([]listing, error) {
	var said bytes.Buffer
	arguments := append([]string{"list", "-e", "-export", "-deps", "-json=ImportPath,Name,Export,DepOnly,Error,Dir,ForTest,GoFiles,ImportMap"}, flags...)
	command := exec.Command("go", append(arguments, "./...")...)
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
func reader(fset *token.FileSet, files, renamed map[string]string) types.Importer {
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if other := renamed[path]; other != "" {
			path = other
		}
		if files[path] == "" {
			return nil, fmt.Errorf("%s is not compiled", path)
		}
		return os.Open(files[path])
	})
}

// LoadProgram reads the module at root for the platform it runs on, its tests
// included.
func LoadProgram(root string) (*Program, error) {
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	listed, err := list(absolute, "-test")
	if err != nil {
		return nil, err
	}
	program := &Program{root: absolute, fset: token.NewFileSet()}
	exports := compiled(listed)
	for _, p := range listed {
		if p.DepOnly || strings.HasSuffix(p.ImportPath, ".test") || len(p.GoFiles) == 0 {
			continue
		}
		if p.Error != nil {
			return nil, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		}
		u, err := program.check(p, exports)
		if err != nil {
			return nil, err
		}
		program.packages = append(program.packages, u)
	}
	return program, nil
}

func (p *Program) check(listed listing, exports map[string]string) (*unit, error) {
	name, _, _ := strings.Cut(listed.ImportPath, " ")
	u := &unit{path: name, test: listed.ForTest != "", info: &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object),
		Defs: make(map[*ast.Ident]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}}
	dir, err := filepath.Rel(p.root, listed.Dir)
	if err != nil {
		return nil, err
	}
	u.dir = filepath.ToSlash(dir)
	for _, base := range listed.GoFiles {
		file := filepath.Join(listed.Dir, base)
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		syntax, err := parser.ParseFile(p.fset, path.Join(u.dir, base), text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		u.files = append(u.files, syntax)
	}
	config := types.Config{Importer: reader(p.fset, exports, listed.ImportMap), Sizes: types.SizesFor("gc", "amd64")}
	u.pkg, err = config.Check(name, p.fset, u.files, u.info)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", listed.ImportPath, err)
	}
	return u, nil
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
	where, _, _ := strings.Cut(f.Pkg().Path(), " ")
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
