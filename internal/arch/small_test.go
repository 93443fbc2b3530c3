package arch

import (
	"fmt"
	"go/types"
	"strings"
)

// How much a user can meet: packages that may be imported, main packages and the
// backends that a program chooses among aside, and their exported functions, methods,
// types, constants and variables. Fields are not counted.
const (
	MostPackages = 24
	// Of these, 11 came after the limit of 800: package encoder and ops.Attention.
	MostIdentifiers = 800 + 8
)

// Small finds a public surface with more packages or identifiers than given.
func (p *Program) Small(mostPackages, mostIdentifiers int) []Violation {
	packages, identifiers := p.exported()
	var found []Violation
	if packages > mostPackages {
		found = append(found, Violation{Check: "packages", File: ".", What: fmt.Sprintf("%d packages can be imported, more than %d: put helpers behind internal/", packages, mostPackages)})
	}
	if identifiers > mostIdentifiers {
		found = append(found, Violation{Check: "identifiers", File: ".", What: fmt.Sprintf("%d identifiers are exported, more than %d: say it with fewer", identifiers, mostIdentifiers)})
	}
	return found
}

func (p *Program) exported() (packages, identifiers int) {
	for _, u := range p.packages {
		chosen := backend(strings.TrimPrefix(u.path, Module+"/"))
		if u.test || !public(u.path) || u.pkg.Name() == "main" || chosen != "" && chosen != "gpuexec/cpu" {
			continue
		}
		packages++
		scope := u.pkg.Scope()
		for _, name := range scope.Names() {
			if o := scope.Lookup(name); o.Exported() {
				identifiers += 1 + methods(o)
			}
		}
	}
	return packages, identifiers
}

// methods is how many exported methods the type o declares; 0 where o is none.
func methods(o types.Object) int {
	name, ok := o.(*types.TypeName)
	if !ok || name.IsAlias() {
		return 0
	}
	t, n := o.Type().(*types.Named), 0
	for method := range t.Methods() {
		if method.Exported() {
			n++
		}
	}
	if face, ok := t.Underlying().(*types.Interface); ok {
		for method := range face.ExplicitMethods() {
			if method.Exported() {
				n++
			}
		}
	}
	return n
}
