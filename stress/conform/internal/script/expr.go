package script

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// Vars are what {…} stands for: I the item of the innermost loop around a
// statement, T the number of the thread or process that runs it.
type Vars struct {
	I    string
	HasI bool
	T    int
	HasT bool
}

// WithI is v inside a loop's turn.
func (v Vars) WithI(item string) Vars { v.I, v.HasI = item, true; return v }

// WithT is v in thread or process number t.
func (v Vars) WithT(t int) Vars { v.T, v.HasT = t, true; return v }

// Expand puts values in place of {i}, {t} and integer expressions over them.
// Braces around anything else stay as they are.
func Expand(text string, v Vars) (expanded string, failed error) {
	expanded = expression.ReplaceAllStringFunc(text, func(braced string) string {
		value, err := v.value(braced[1 : len(braced)-1])
		failed = cmp.Or(failed, err)
		return value
	})
	return expanded, failed
}

var expression = regexp.MustCompile(`\{[-+*/% 0-9it]*[it][-+*/% 0-9it]*\}`)

func (v Vars) value(expr string) (string, error) {
	if expr == "i" && v.HasI {
		return v.I, nil
	}
	tree, err := parser.ParseExpr(expr)
	if err != nil || strings.Contains(expr, "//") {
		return "", fmt.Errorf("{%s}: want numbers, i and t with + - * / or %% between them", expr)
	}
	n, err := v.eval(tree)
	if err != nil {
		return "", fmt.Errorf("{%s}: %w", expr, err)
	}
	if _, exact := constant.Int64Val(n); !exact {
		return "", fmt.Errorf("{%s}: overflow", expr)
	}
	return n.ExactString(), nil
}

// eval computes with integers of any size.
func (v Vars) eval(tree ast.Expr) (constant.Value, error) {
	switch e := tree.(type) {
	case *ast.Ident:
		return v.named(e.Name)
	case *ast.BasicLit:
		if e.Kind == token.INT {
			return constant.MakeFromLiteral(e.Value, token.INT, 0), nil
		}
	case *ast.UnaryExpr:
		x, err := v.eval(e.X)
		if err != nil {
			return nil, err
		}
		return constant.UnaryOp(e.Op, x, 0), nil
	case *ast.BinaryExpr:
		x, err := v.eval(e.X)
		if err != nil {
			return nil, err
		}
		y, err := v.eval(e.Y)
		if err != nil {
			return nil, err
		}
		op := e.Op
		if op == token.QUO {
			op = token.QUO_ASSIGN // which is go/constant's division of integers
		}
		if (op == token.QUO_ASSIGN || op == token.REM) && constant.Sign(y) == 0 {
			return nil, errors.New("division by zero")
		}
		return constant.BinaryOp(x, op, y), nil
	}
	return nil, errors.New("a number, i or t is wanted")
}

// named is the value of i or t.
func (v Vars) named(name string) (constant.Value, error) {
	switch {
	case name == "i" && v.HasI:
		n, err := strconv.ParseInt(v.I, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the item %q is not an integer", v.I)
		}
		return constant.MakeInt64(n), nil
	case name == "t" && v.HasT:
		return constant.MakeInt64(int64(v.T)), nil
	}
	return nil, fmt.Errorf("there is no loop or thread here that gives %s", name)
}
