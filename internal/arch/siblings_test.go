package arch

import (
	"go/ast"
	"go/types"
	"strings"
)

var (
	// using are the packages that use what the rooms offer as a user would: the door
	// too, for what it calls is what a user of a room alone calls.
	using = []string{".", "cmd", "stress", "encoder", "internal/forward", "gpuexec/devicetest", "internal/measure"}
	// serving are the rooms that exist to be called by the rooms above them.
	serving = []string{"actors", "shapegroups", "env", "limit", "fault"}
)

// Siblings finds exported functions and methods that only another room needs: a
// product of another package calls them, and nothing that stands for a user
// does. For a user stand the products in using, the tests of other packages (as
// far as they resolve), and examples anywhere. Rooms of serving are left out, and so is what is called
// through an interface only.
func (p *Program) Siblings() []Violation {
	siblings, users := make(map[string]string), make(map[string]bool)
	for _, u := range p.packages {
		for _, f := range p.counted(u) {
			for _, d := range f.Decls {
				_, isFunc := d.(*ast.FuncDecl)
				example := u.test && isFunc && strings.HasPrefix(d.(*ast.FuncDecl).Name.Name, "Example")
				for callee := range u.mentioned(d) {
					home := callee.Pkg().Path()
					switch tested := strings.TrimSuffix(u.path, "_test"); {
					case home == tested && !example:
					case u.test, within(u.dir, using):
						users[name(callee)] = true
					default:
						siblings[name(callee)] = strings.TrimPrefix(tested, Module+"/")
					}
				}
			}
		}
	}
	var found []Violation
	for _, u := range p.packages {
		if u.test || !public(u.path) || u.pkg.Name() == "main" || within(u.dir, serving) {
			continue
		}
		for id, o := range u.info.Defs {
			f, ok := o.(*types.Func)
			if !ok || !shown(f) {
				continue
			}
			if by, called := siblings[name(f)]; called && !users[name(f)] {
				found = append(found, p.at("sibling", id.Pos(), "%s is exported and only %s calls it", f.Name(), by))
			}
		}
	}
	sortByPlace(found)
	return found
}

// mentioned are the functions and methods of this module that d calls or hands on.
func (u *unit) mentioned(d ast.Decl) map[*types.Func]bool {
	found := make(map[*types.Func]bool)
	ast.Inspect(d, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			if f, ok := u.info.Uses[id].(*types.Func); ok && f.Pkg() != nil && strings.HasPrefix(f.Pkg().Path()+"/", Module+"/") {
				found[f.Origin()] = true
			}
		}
		return true
	})
	return found
}

// shown: f is an exported function, or an exported method of an exported type.
func shown(f *types.Func) bool {
	if !f.Exported() {
		return false
	}
	receiver := f.Signature().Recv()
	if receiver == nil {
		return f.Parent() == f.Pkg().Scope()
	}
	t := named(receiver.Type())
	return t != nil && t.Obj().Exported() && !types.IsInterface(t)
}
