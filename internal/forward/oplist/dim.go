package oplist

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Limits on what a list may ask for. They bound the work and memory that a
// hostile file can cause.
const (
	maxExpression = 64                      // bytes of a dim's text
	maxTerms      = 16                      // terms of a dim after multiplying out
	maxRank       = 8                       // dims of one tensor
	maxDim        = min(1<<31, math.MaxInt) // value of one dim
	maxElements   = min(1<<40, math.MaxInt) // elements of one tensor
)

// Dim is a symbolic size: a sum of products of numbers and symbols, kept in
// one canonical order so that equal sizes are equal text.
type Dim struct {
	terms []term // sorted by symbols; no two with the same, no zero coefficient
	text  string
}

type term struct {
	coef    int
	symbols []string // sorted
	product string   // the symbols joined with *
}

// String is the canonical form, such as "B*S" or "P+1".
func (d Dim) String() string { return d.text }

// number is a Dim without symbols.
func number(n int) Dim { return newDim([]term{{coef: n}}) }

// constant is the value of a Dim without symbols.
func (d Dim) constant() (int, bool) {
	if len(d.terms) == 1 && d.terms[0].product == "" {
		return d.terms[0].coef, true
	}
	return 0, false
}

// symbol is the name of a Dim that is one symbol alone.
func (d Dim) symbol() (string, bool) {
	if len(d.terms) == 1 && d.terms[0].coef == 1 && len(d.terms[0].symbols) == 1 {
		return d.terms[0].product, true
	}
	return "", false
}

func newDim(terms []term) Dim {
	slices.SortFunc(terms, func(a, b term) int { return strings.Compare(b.product, a.product) }) // the constant last
	text := make([]string, len(terms))
	for i, t := range terms {
		switch {
		case t.product == "":
			text[i] = strconv.Itoa(t.coef)
		case t.coef == 1:
			text[i] = t.product
		default:
			text[i] = strconv.Itoa(t.coef) + "*" + t.product
		}
	}
	return Dim{terms, strings.Join(text, "+")}
}

// parseDim reads an expression: terms joined by +, of factors joined by *.
func parseDim(text string, symbols map[string]string) (Dim, error) {
	if len(text) > maxExpression {
		return Dim{}, fmt.Errorf("an expression of %d bytes; at most %d are read", len(text), maxExpression)
	}
	var terms []term
	for part := range strings.SplitSeq(text, "+") {
		t := term{coef: 1}
		for factor := range strings.SplitSeq(part, "*") {
			factor = strings.TrimSpace(factor)
			if _, ok := symbols[factor]; ok {
				t.symbols = append(t.symbols, factor)
				continue
			}
			n, err := strconv.ParseUint(factor, 10, 31)
			if err != nil || n == 0 {
				return Dim{}, fmt.Errorf("%q in %q is neither a number from 1 to %d nor one of the header's symbols; write sums and products of these, such as \"B*S\" or \"P+1\"",
					factor, text, maxDim-1)
			}
			if t.coef, err = multiply(t.coef, int(n)); err != nil {
				return Dim{}, err
			}
		}
		slices.Sort(t.symbols)
		t.product = strings.Join(t.symbols, "*")
		var err error
		if terms, err = addTerm(terms, t); err != nil {
			return Dim{}, err
		}
	}
	return newDim(terms), nil
}

func addTerm(terms []term, t term) ([]term, error) {
	for i := range terms {
		if terms[i].product == t.product {
			if terms[i].coef > math.MaxInt-t.coef {
				return nil, errTooLarge
			}
			terms[i].coef += t.coef
			return terms, nil
		}
	}
	if len(terms) == maxTerms {
		return nil, fmt.Errorf("a size of more than %d terms", maxTerms)
	}
	return append(terms, t), nil
}

// elements multiplies dims out: the number of elements as one Dim.
func elements(dims []Dim) (Dim, error) {
	out := []term{{coef: 1}}
	for _, d := range dims {
		var next []term
		for _, a := range out {
			for _, b := range d.terms {
				coef, err := multiply(a.coef, b.coef)
				if err != nil {
					return Dim{}, err
				}
				s := slices.Concat(a.symbols, b.symbols)
				slices.Sort(s)
				if next, err = addTerm(next, term{coef, s, strings.Join(s, "*")}); err != nil {
					return Dim{}, err
				}
			}
		}
		out = next
	}
	return newDim(out), nil
}

// eval gives the size for these values of the symbols.
func (d Dim) eval(values map[string]int) (int, error) {
	sum := 0
	for _, t := range d.terms {
		v := t.coef
		for _, s := range t.symbols {
			var err error
			if v, err = multiply(v, values[s]); err != nil {
				return 0, err
			}
		}
		if v >= maxDim-sum {
			return 0, errTooLarge
		}
		sum += v
	}
	return sum, nil
}

var errTooLarge = errors.New("a size above the limit of 2^31-1 a dim and 2^40 elements a tensor")

// multiply is a*b for values from 0, refused above maxElements.
func multiply(a, b int) (int, error) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > maxElements {
		return 0, errTooLarge
	}
	return int(lo), nil
}

func equalDims(a, b []Dim) bool {
	return slices.EqualFunc(a, b, func(x, y Dim) bool { return x.text == y.text })
}

func formatDims(dims []Dim) string {
	text := make([]string, len(dims))
	for i, d := range dims {
		text[i] = d.text
	}
	return "[" + strings.Join(text, ",") + "]"
}
