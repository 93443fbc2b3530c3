package arch

import (
	"fmt"
	"go/ast"
	"go/types"
	"slices"
	"strings"
)

// Renamed are words that the rooms used for what has one word now: the table of
// docs/HOUSE.md. They are no names of exported functions and methods.
var Renamed = map[string]string{
	"GetOrCreate": "Get", "GetOrCompute": "Get", "GetLane": "Lookup",
	"Metrics": "Stats", "Statistics": "Stats", "Snapshot": "Stats",
	"Objects": "Len", "Entries": "Len", "Live": "Len",
	"DropOwner": "Reset", "Delete": "Remove",
}

// Words finds what public packages call by another word than the house does:
// functions and methods of Renamed, bytes that are no int64, costs that are no
// time.Duration; and in any product an error logged under another key.
func (p *Program) Words() []Violation {
	var found []Violation
	for _, u := range p.packages {
		if u.test {
			continue
		}
		found = append(found, p.logKeys(u)...)
		if !public(u.path) || u.pkg.Name() == "main" {
			continue
		}
		for id, o := range u.info.Defs {
			if what := wrongWord(u, o); what != "" {
				found = append(found, p.at("word", id.Pos(), "%s", what))
			}
		}
	}
	sortByPlace(found)
	return found
}

func wrongWord(u *unit, o types.Object) string {
	switch o := o.(type) {
	case *types.Func:
		if !shown(o) {
			return ""
		}
		if right := Renamed[o.Name()]; right != "" {
			return fmt.Sprintf("%s is called %s in this house", o.Name(), right)
		}
		for v := range o.Signature().Params().Variables() {
			if what := wrongUnit(v); what != "" {
				return o.Name() + ": " + what
			}
		}
		for v := range o.Signature().Results().Variables() {
			if what := wrongUnit(v); what != "" {
				return o.Name() + ": " + what
			}
		}
		if result := o.Signature().Results(); result.Len() > 0 {
			return wrongUnit(types.NewVar(o.Pos(), u.pkg, o.Name(), result.At(0).Type()))
		}
	case *types.Var:
		if o.IsField() && o.Exported() {
			return wrongUnit(o)
		}
	}
	return ""
}

// otherUnits are the numbers that bytes are not counted in. Small ones are marks.
var otherUnits = []types.BasicKind{types.Int, types.Int32, types.Uint, types.Uint32, types.Uint64, types.Float64}

// wrongUnit says what is wrong with the type of what is called bytes or cost.
func wrongUnit(v *types.Var) string {
	basic, ok := types.Unalias(v.Type()).(*types.Basic)
	lower := strings.ToLower(v.Name())
	switch {
	case !ok || basic.Info()&types.IsNumeric == 0:
	case strings.HasSuffix(lower, "bytes") && slices.Contains(otherUnits, basic.Kind()):
		return fmt.Sprintf("%s is a %s: bytes are int64", v.Name(), basic)
	case strings.HasSuffix(lower, "cost"):
		return fmt.Sprintf("%s is a %s: a cost is a time.Duration", v.Name(), basic)
	}
	return ""
}

// logging are the methods and functions that take a log line's keys.
var logging = []string{
	"Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext",
	"Log", "LogAttrs", "With", "Any", "String",
}

func (p *Program) logKeys(u *unit) []Violation {
	var found []Violation
	for _, f := range u.files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			callee := u.callee(call)
			if callee == nil || callee.Pkg() == nil || !slices.Contains(logging, callee.Name()) {
				return true
			}
			if where := callee.Pkg().Path(); where != "log/slog" && where != "go.uber.org/zap" {
				return true
			}
			for _, argument := range call.Args {
				if key, ok := argument.(*ast.BasicLit); ok && key.Value == `"err"` {
					found = append(found, p.at("word", key.Pos(), `the log key of an error is "error"`))
				}
			}
			return true
		})
	}
	return found
}
