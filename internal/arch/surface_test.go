package arch

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"strings"
)

// Surface finds foreign and internal types in what the public packages of the
// module at root export: functions, methods, fields, variables, aliases,
// constraints. It reads what the compiler wrote down; a package that does not
// compile is an error beside the violations of those that do.
func Surface(root string) ([]Violation, error) {
	absolute, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	listed, err := list(absolute)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	read := reader(fset, compiled(listed))
	var found []Violation
	var broken error
	for _, p := range listed {
		if p.DepOnly || p.Name == "main" || !public(p.ImportPath) {
			continue
		}
		if p.Error != nil {
			broken = errors.Join(broken, fmt.Errorf("%s: %s", p.ImportPath, p.Error.Err))
			continue
		}
		if p.Export == "" { // nothing but tests
			continue
		}
		pkg, err := read.Import(p.ImportPath)
		if err != nil {
			broken = errors.Join(broken, err)
			continue
		}
		w := &surface{pkg: pkg, fset: fset, root: absolute, seen: make(map[types.Type]bool)}
		w.walk()
		found = append(found, w.found...)
	}
	sortByPlace(found)
	return found, broken
}

// public reports whether code outside the module may import path.
func public(path string) bool {
	return !strings.Contains(path+"/", "/internal/")
}

// surface collects what one package shows.
type surface struct {
	pkg   *types.Package
	fset  *token.FileSet
	root  string
	seen  map[types.Type]bool
	at    types.Object // whose signature is being looked at
	found []Violation
}

func (w *surface) walk() {
	scope := w.pkg.Scope()
	for _, name := range scope.Names() {
		object := scope.Lookup(name)
		if !object.Exported() {
			continue
		}
		w.at = object
		if name, ok := object.(*types.TypeName); ok && !name.IsAlias() {
			w.declared(object.Type().(*types.Named))
			continue
		}
		w.visit(object.Type())
	}
}

// declared looks at what a named type of this module shows of itself.
func (w *surface) declared(t *types.Named) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	w.parameters(t.TypeParams())
	w.visit(t.Underlying())
	for method := range t.Methods() {
		if method.Exported() {
			outer := w.at
			w.at = method
			w.visit(method.Type())
			w.at = outer
		}
	}
}

func (w *surface) visit(t types.Type) {
	switch t := t.(type) {
	case *types.Alias:
		if w.judge(t.Obj()) {
			w.visit(t.Rhs())
		}
	case *types.Named:
		for argument := range t.TypeArgs().Types() {
			w.visit(argument)
		}
		// An exported type of this module is looked at where it is declared.
		if w.judge(t.Obj()) && t.Obj().Pkg() == w.pkg && !t.Obj().Exported() {
			w.declared(t.Origin())
		}
	case *types.Signature:
		w.parameters(t.TypeParams())
		w.visit(t.Params())
		w.visit(t.Results())
	case *types.Tuple:
		for v := range t.Variables() {
			w.visit(v.Type())
		}
	case *types.Struct:
		for field := range t.Fields() {
			if field.Exported() || field.Embedded() { // an embedded one lends its methods
				outer := w.at
				w.at = field
				w.visit(field.Type())
				w.at = outer
			}
		}
	case *types.Interface:
		for method := range t.ExplicitMethods() {
			if method.Exported() {
				w.visit(method.Type())
			}
		}
		for embedded := range t.EmbeddedTypes() {
			w.visit(embedded)
		}
	case *types.Union:
		for term := range t.Terms() {
			w.visit(term.Type())
		}
	case *types.Map:
		w.visit(t.Key())
		w.visit(t.Elem())
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		w.visit(t.Elem())
	}
}

func (w *surface) parameters(list *types.TypeParamList) {
	for parameter := range list.TypeParams() {
		w.visit(parameter.Constraint())
	}
}

// judge reports whether a user can name the type: it is the standard library's,
// or this module's own and not internal.
func (w *surface) judge(name *types.TypeName) bool {
	if name.Pkg() == nil || !isForeign(name.Pkg().Path()) {
		return true
	}
	what, path := "foreign", name.Pkg().Path()
	if path == Module || strings.HasPrefix(path, Module+"/") {
		if public(path) {
			return true
		}
		what = "internal"
	}
	place := w.position(w.at.Pos())
	w.found = append(w.found, Violation{
		Check: "surface", File: place.Filename, Line: place.Line,
		What: fmt.Sprintf("%s shows the %s type %s.%s", w.at.Name(), what, path, name.Name()),
	})
	return false
}

func (w *surface) position(pos token.Pos) token.Position {
	place := w.fset.Position(pos)
	place.Filename = strings.TrimPrefix(place.Filename, Module+"/") // as -trimpath has it
	if rel, err := filepath.Rel(w.root, place.Filename); err == nil {
		place.Filename = filepath.ToSlash(rel)
	}
	return place
}
