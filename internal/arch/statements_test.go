package arch

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
)

// environment is every way to read a variable, by import path.
var environment = map[string][]string{
	"os":                    {"Getenv", "LookupEnv", "Environ", "ExpandEnv"},
	"syscall":               {"Getenv", "Environ"},
	"golang.org/x/sys/unix": {"Getenv", "Environ"},
}

var (
	readsEnvironment = []string{"env"}
	// The rooms whose goroutines have an owner, a stop signal and a waiter.
	startsGoroutines = []string{"actors", "encoder", "gpuexec", "cmd", "stress"}
)

// statements finds reads of the environment and go statements outside their rooms.
func (t *Tree) statements(f file) []Violation {
	var found []Violation
	if !within(f.dir, readsEnvironment) {
		for imported, names := range environment {
			for _, use := range uses(f.syntax, imported, names) {
				found = append(found, t.at("environment", f, use.Pos(), "%s.%s is for env alone: take a Settings", imported, use.Name))
			}
		}
	}
	if f.test || within(f.dir, startsGoroutines) {
		return found
	}
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n, ok := n.(*ast.GoStmt); ok {
			found = append(found, t.at("goroutine", f, n.Pos(), "a go statement here has no owner: let actors lend the goroutine"))
		}
		return true
	})
	return found
}

// hazards are the parts of the actor library that were measured to race, to lose
// messages, to spin or to end after ten seconds.
var hazards = []string{
	"NewFuture", "Request", "RequestFuture", "RequestWithCustomSender", "StopFuture", "PoisonFuture", "SetReceiveTimeout",
	"Bounded", "BoundedDropping", "MessageBatch", "Shutdown",
}

// library finds uses of hazards behind the facade, where alone the library is known.
func (t *Tree) library(f file) []Violation {
	if f.test || !within(f.dir, []string{"actors"}) {
		return nil
	}
	var found []Violation
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		if n, ok := n.(*ast.SelectorExpr); ok && slices.Contains(hazards, n.Sel.Name) {
			found = append(found, t.at("library", f, n.Pos(), "%s of the actor library is a hazard: use Reply, Stop and admission", n.Sel.Name))
		}
		return true
	})
	return found
}

// uses finds the names of package imported that the file mentions, under
// whatever name it imported the package.
func uses(syntax *ast.File, imported string, names []string) []*ast.Ident {
	var found []*ast.Ident
	for _, spec := range syntax.Imports {
		if target, err := strconv.Unquote(spec.Path.Value); err != nil || target != imported {
			continue
		}
		local := path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, n.Sel.Name) {
					found = append(found, n.Sel)
				}
				return local != "." // else the selected name would be taken for one of the package
			case *ast.Ident:
				if local == "." && slices.Contains(names, n.Name) {
					found = append(found, n)
				}
			}
			return true
		})
	}
	return found
}
