package arch

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// cores are the pure cores that are not called state, as "folder.Type".
var cores = []string{"internal/flight.Desk", "gpuexec/blobstore.index"}

// What a core must not touch, by import path. Atomic values it may read and
// store: the table that readers see is the state itself.
var impure = []string{
	"context", "log", "log/slog", "os", "sync", "go.uber.org/zap", Module + "/actors",
	Module + "/internal/vfs",
}

// stopwatch is every way to read or await the clock.
var stopwatch = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// Cores finds what no method of a pure core may do, in whatever file it stands:
// use a value of a context, a channel, an actor, a lock or a log, read a clock,
// start a goroutine. A core is a struct called state, or one of the list. What
// its methods call in this module counts as theirs, as far as calls name what
// they call; a value that they only hand on is not used.
func (p *Program) Cores() []Violation {
	graph := p.calls()
	var found []Violation
	for _, f := range graph {
		if !f.core {
			continue
		}
		if what, chain := graph.reach(f); what != nil {
			found = append(found, p.at("core", f.pos, "a method of a pure core: %s, which %s (%s)", strings.Join(chain, " calls "), what.what, p.fset.Position(what.pos)))
		}
	}
	sortByPlace(found)
	return found
}

func isCore(u *unit, d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return false
	}
	receiver := named(u.info.Defs[d.Name].(*types.Func).Signature().Recv().Type())
	if receiver == nil {
		return false
	}
	if _, ok := receiver.Underlying().(*types.Struct); !ok {
		return false
	}
	return receiver.Obj().Name() == "state" || slices.Contains(cores, u.dir+"."+receiver.Obj().Name())
}

// calls is who calls whom in the products of the module, and what each does
// itself that a core must not.
type calls map[string]*function

type function struct {
	short   string // as in a chain of calls
	pos     token.Pos
	core    bool // a method of one
	callees []string
	does    *impurity // the first
}

type impurity struct {
	pos  token.Pos
	what string
}

func (p *Program) calls() calls {
	graph := make(calls)
	for _, u := range p.packages {
		if u.test {
			continue
		}
		for _, f := range u.files {
			for _, d := range f.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
					graph[name(u.info.Defs[d.Name].(*types.Func))] = u.function(d)
				}
			}
		}
	}
	return graph
}

// function reads one declaration: what it calls, and the first impure thing in it.
func (u *unit) function(d *ast.FuncDecl) *function {
	own := u.info.Defs[d.Name].(*types.Func)
	f := &function{pos: d.Pos(), core: isCore(u, d), short: strings.TrimPrefix(strings.TrimPrefix(name(own), Module+"/"), Module+".")}
	does := func(pos token.Pos, format string, args ...any) {
		if f.does == nil {
			f.does = &impurity{pos, fmt.Sprintf(format, args...)}
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			does(n.Pos(), "starts a goroutine")
		case *ast.SelectStmt:
			does(n.Pos(), "waits on channels")
		case *ast.SendStmt:
			does(n.Pos(), "sends on a channel")
		case *ast.ChanType:
			does(n.Pos(), "has a channel")
		case *ast.UnaryExpr:
			if n.Op == token.ARROW {
				does(n.Pos(), "receives from a channel")
			}
		case *ast.RangeStmt:
			if _, ok := u.info.TypeOf(n.X).Underlying().(*types.Chan); ok {
				does(n.Pos(), "receives from a channel")
			}
		case *ast.CallExpr:
			if callee := u.callee(n); callee != nil {
				f.callees = append(f.callees, name(callee))
			} else if t := named(u.info.TypeOf(n.Fun)); t != nil && isImpure(t.Obj()) {
				does(n.Pos(), "calls a %s.%s", t.Obj().Pkg().Path(), t.Obj().Name())
			}
		case *ast.Ident:
			switch o := u.info.Uses[n].(type) {
			case *types.Func:
				if isImpure(o) {
					does(n.Pos(), "uses %s", name(o))
				}
			case *types.Var:
				if isImpure(o) {
					does(n.Pos(), "uses %s.%s", o.Pkg().Path(), o.Name())
				}
			case *types.TypeName:
				if isImpure(o) {
					does(n.Pos(), "names %s.%s", o.Pkg().Path(), o.Name())
				}
			case *types.Builtin:
				if o.Name() == "close" {
					does(n.Pos(), "closes a channel")
				}
			}
		}
		return true
	})
	return f
}

func (u *unit) callee(call *ast.CallExpr) *types.Func {
	fun := ast.Unparen(call.Fun)
	switch x := fun.(type) {
	case *ast.IndexExpr:
		fun = x.X
	case *ast.IndexListExpr:
		fun = x.X
	}
	var id *ast.Ident
	switch x := fun.(type) {
	case *ast.Ident:
		id = x
	case *ast.SelectorExpr:
		id = x.Sel
	default:
		return nil
	}
	callee, _ := u.info.Uses[id].(*types.Func)
	return callee
}

// isImpure: a core must not use o, a function, method, variable, field or type.
func isImpure(o types.Object) bool {
	if o.Pkg() == nil {
		return false
	}
	where := o.Pkg().Path()
	return slices.Contains(impure, where) || where == "time" && slices.Contains(stopwatch, o.Name())
}

// reach finds the nearest impure thing that a function does itself or through
// what it calls, and the way there. Methods of cores on the way speak for
// themselves.
func (c calls) reach(from *function) (*impurity, []string) {
	type step struct {
		at   *function
		last *step
	}
	seen := map[*function]bool{from: true}
	for queue := []*step{{at: from}}; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if s.at.does != nil {
			does := s.at.does
			var chain []string
			for ; s != nil; s = s.last {
				chain = append(chain, s.at.short)
			}
			slices.Reverse(chain)
			return does, chain
		}
		for _, callee := range s.at.callees {
			// nil: of another module, or called through an interface
			if f := c[callee]; f != nil && !f.core && !seen[f] {
				seen[f] = true
				queue = append(queue, &step{f, s})
			}
		}
	}
	return nil, nil
}
