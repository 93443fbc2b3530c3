package script

import (
	"cmp"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Field is one name=value of a result.
type Field struct{ Name, Value string }

// Result is what a statement answers: words, then fields.
type Result struct {
	Words  []string
	Fields []Field
}

// Say is a result of words.
func Say(words ...string) Result { return Result{Words: words} }

// With is r with one more field.
func (r Result) With(name, value string) Result {
	r.Fields = append(r.Fields[:len(r.Fields):len(r.Fields)], Field{name, value})
	return r
}

// Field gives the value of the first field of that name.
func (r Result) Field(name string) (string, bool) {
	for _, f := range r.Fields {
		if f.Name == name {
			return f.Value, true
		}
	}
	return "", false
}

// Failed tells whether the result is an error.
func (r Result) Failed() bool { return len(r.Words) > 0 && r.Words[0] == "error" }

// String is the result as a script would write it.
func (r Result) String() string {
	parts := make([]string, 0, len(r.Words)+len(r.Fields))
	for _, w := range r.Words {
		parts = append(parts, quote(w))
	}
	for _, f := range r.Fields {
		parts = append(parts, f.Name+"="+quote(f.Value))
	}
	return strings.Join(parts, " ")
}

func quote(s string) string {
	if q := strconv.Quote(s); s == "" || len(q) != len(s)+2 || strings.ContainsAny(s, " \"#") {
		return q
	}
	return s
}

// Expectation is what stands behind an arrow. The zero value stands for a
// statement without one: any result but an error.
type Expectation struct {
	text         string
	alternatives []alternative
}

type alternative struct {
	words  []Word
	fields []Option
}

// ParseExpectation reads the text behind an arrow.
func ParseExpectation(text string) (Expectation, error) {
	parts, err := cutAt(text, "|")
	if err != nil {
		return Expectation{}, err
	}
	e := Expectation{text: text}
	for _, part := range parts {
		words, fields, err := Words(part)
		if err != nil {
			return Expectation{}, err
		}
		if len(words)+len(fields) == 0 {
			return Expectation{}, fmt.Errorf("nothing is expected: write a result, or \"\" for an empty word")
		}
		e.alternatives = append(e.alternatives, alternative{words, fields})
	}
	return e, nil
}

// Given tells whether there is an arrow at all.
func (e Expectation) Given() bool { return len(e.alternatives) > 0 }

// String is the expectation as written.
func (e Expectation) String() string {
	if !e.Given() {
		return "anything but an error"
	}
	return e.text
}

// Match tells whether the result agrees.
func (e Expectation) Match(r Result) bool {
	if !e.Given() {
		return !r.Failed()
	}
	for _, a := range e.alternatives {
		if a.match(r) {
			return true
		}
	}
	return false
}

func (a alternative) match(r Result) bool {
	if len(a.words) != len(r.Words) {
		return false
	}
	for i, w := range a.words {
		if !agrees(w.Text, w.Quoted, r.Words[i]) {
			return false
		}
	}
	for _, f := range a.fields {
		got, ok := r.Field(f.Name)
		if !ok || !agrees(f.Value, f.Quoted, got) {
			return false
		}
	}
	return true
}

func agrees(want string, literal bool, got string) bool {
	if want == got {
		return true
	}
	if literal {
		return false
	}
	for choice := range strings.SplitSeq(want, "|") {
		if choice == "*" || choice == got || inRange(choice, got) {
			return true
		}
	}
	return false
}

func inRange(pattern, got string) bool {
	from, to, found := strings.Cut(pattern, "..")
	if !found || from == "" && to == "" {
		return false
	}
	n, ok := number(got)
	low, okLow := number(cmp.Or(from, got))
	high, okHigh := number(cmp.Or(to, got))
	return ok && okLow && okHigh && low.Cmp(n) <= 0 && n.Cmp(high) <= 0
}

var decimal = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`)

// number reads a plain decimal exactly: sizes up to 2^64 must not be rounded.
func number(s string) (*big.Rat, bool) {
	if len(s) > 40 || !decimal.MatchString(s) {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}
