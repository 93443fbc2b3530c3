package script

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is a text that cannot be read, with its place.
type Error struct {
	File string
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// File is one script.
type File struct {
	Name  string
	Cases []Case
}

// Case is one case with its statements in order.
type Case struct {
	ID           string
	Rules, Needs []string
	Line         int
	Statements   []Statement
}

// Statement is one statement. At most one of Loop, Each and Watch is set; with
// none Text is a plain statement. Thread is the text before the colon.
type Statement struct {
	Line   int
	Text   string // without comment and thread
	Thread string
	Loop   *Loop
	Each   *Each
	Watch  *Statement
	Err    *Error // it cannot be read and fails its case
}

// Loop is `for LIST as=M: S ; S`.
type Loop struct {
	List, As string
	Body     []Statement
}

// Each is flip-each or truncate-each.
type Each struct {
	Verb string
	Head string // FILE and flags
	Body Statement
}

// Parse reads a script. The error joins an *Error for each place that belongs
// to no case or makes its cases ambiguous; the file is returned all the same.
func Parse(name string, text []byte) (*File, error) {
	f := &File{Name: name}
	var errs []error
	bad := func(line int, format string, args ...any) {
		errs = append(errs, &Error{name, line, fmt.Errorf(format, args...)})
	}
	if !utf8.Valid(text) {
		bad(1, "not UTF-8")
		return f, errors.Join(errs...)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	seen := map[string]int{}
	for line := 1; lines.Scan(); line++ {
		stmt, err := uncomment(lines.Text())
		if stmt == "" && err == nil {
			continue
		}
		if first, _ := cutBlank(stmt); first == "case" {
			c, err := parseCase(stmt)
			if err != nil {
				bad(line, "%w", err)
			}
			if before, dup := seen[c.ID]; dup {
				bad(line, "case %s was begun before, in line %d", c.ID, before)
			}
			seen[c.ID] = line
			c.Line = line
			f.Cases = append(f.Cases, c)
			continue
		}
		if len(f.Cases) == 0 {
			bad(line, "statement before the first case")
			break // all that follows may be no script
		}
		c := &f.Cases[len(f.Cases)-1]
		s := Statement{Line: line, Text: stmt}
		if err == nil {
			s, err = parseStatement(line, stmt, 0)
		}
		if err != nil {
			s.Line, s.Text, s.Err = line, stmt, &Error{name, line, err}
		}
		c.Statements = append(c.Statements, s)
	}
	return f, errors.Join(errs...)
}

func parseCase(stmt string) (Case, error) {
	words, options, err := Words(stmt)
	if err != nil {
		return Case{}, err
	}
	if len(words) != 2 || words[1].Text == "" {
		return Case{}, fmt.Errorf("want: case ID rules=R,… [needs=X,…]")
	}
	c := Case{ID: words[1].Text}
	for _, o := range options {
		list := slices.DeleteFunc(strings.Split(o.Value, ","), func(s string) bool { return s == "" })
		switch o.Name {
		case "rules":
			c.Rules = list
		case "needs":
			c.Needs = list
		default:
			return c, fmt.Errorf("unknown option %s of case", o.Name)
		}
	}
	if len(c.Rules) == 0 {
		return c, fmt.Errorf("case %s cites no rule: add rules=", c.ID)
	}
	return c, nil
}

// What is around a statement.
const (
	inThread     = 1 << iota
	inLoop       // in a loop of any kind
	inThreadLoop // in a loop that itself stands behind a thread's name
	inWrap       // behind watch, flip-each or truncate-each
)

// ParseStatement reads one statement that stands behind a thread's or a
// process's name, as another process gets it.
func ParseStatement(file string, line int, text string) Statement {
	s, err := parseStatement(line, text, inThread)
	if err != nil {
		s.Err = &Error{file, line, err}
	}
	return s
}

// parseStatement keeps the structure: threads, loops, wrapped statements.
func parseStatement(line int, text string, around int) (Statement, error) {
	s := Statement{Line: line, Text: text}
	first, rest := cutBlank(text)
	if isThread(first) {
		if around&(inThread|inWrap) != 0 {
			return s, fmt.Errorf("%s stands inside a thread or a wrapped statement", first)
		}
		inner, err := parseStatement(line, rest, around|inThread)
		inner.Thread = strings.TrimSuffix(first, ":")
		if err == nil && rest == "" {
			err = fmt.Errorf("no statement behind %s", first)
		}
		return inner, err
	}
	switch first {
	case "for":
		return parseLoop(s, rest, around)
	case "watch":
		inner, err := parseWrapped(line, first, rest, around)
		s.Watch = &inner
		return s, err
	case "flip-each", "truncate-each":
		head, body, ok := cutColon(rest)
		if !ok || body == "" {
			return s, fmt.Errorf("want: %s FILE: STATEMENT", first)
		}
		inner, err := parseWrapped(line, first, body, around)
		s.Each = &Each{Verb: first, Head: head, Body: inner}
		return s, err
	}
	if around&inLoop == 0 {
		if parts, err := cutAt(text, ";"); err != nil || len(parts) > 1 {
			return s, errors.Join(err, fmt.Errorf("several statements in one line are for loops only"))
		}
	}
	return s, nil
}

// parseWrapped reads the statement behind watch, flip-each or truncate-each.
func parseWrapped(line int, wrap, text string, around int) (Statement, error) {
	inner, err := parseStatement(line, text, around|inWrap)
	if err == nil && (inner.Loop != nil || inner.Each != nil || inner.Watch != nil) {
		err = fmt.Errorf("%s takes one plain statement", wrap)
	}
	return inner, err
}

func parseLoop(s Statement, rest string, around int) (Statement, error) {
	if around&(inWrap|inThreadLoop) != 0 || around&inLoop != 0 && around&inThread == 0 {
		return s, fmt.Errorf("a loop inside stands only behind a thread name")
	}
	head, body, ok := cutColon(rest)
	if !ok || body == "" {
		return s, fmt.Errorf("want: for LIST [as=M]: STATEMENT")
	}
	loop := &Loop{List: strings.TrimSpace(head)}
	if at := strings.LastIndexAny(loop.List, " \t"); at >= 0 {
		if name, found := strings.CutPrefix(loop.List[at+1:], "as="); found {
			loop.List, loop.As = strings.TrimSpace(loop.List[:at]), name
		}
	}
	parts, err := cutAt(body, ";")
	if err != nil {
		return s, err
	}
	around |= inLoop
	if around&inThread != 0 {
		around |= inThreadLoop
	}
	for _, part := range parts {
		if part == "" {
			return s, fmt.Errorf("an empty statement in a loop")
		}
		inner, err := parseStatement(s.Line, part, around)
		if err != nil {
			return s, err
		}
		loop.Body = append(loop.Body, inner)
	}
	s.Loop = loop
	return s, nil
}

// isThread tells a thread's or process's name with its colon: A: or A*64:.
func isThread(word string) bool {
	return len(word) > 1 && word[0] >= 'A' && word[0] <= 'Z' && word[len(word)-1] == ':' && !strings.ContainsAny(word, "=\"/")
}

var threadName = regexp.MustCompile(`^[A-Z][A-Za-z0-9_]*$`)

// SplitThread reads A or A*64 into a name and a number, 0 where none is given.
func SplitThread(text string) (name string, n int, err error) {
	name, count, found := strings.Cut(text, "*")
	if found {
		if n, err = strconv.Atoi(count); err != nil || n < 1 || n > 4096 {
			return "", 0, fmt.Errorf("%s: want a number of 1 to 4096 behind the star", text)
		}
	}
	if !threadName.MatchString(name) {
		return "", 0, fmt.Errorf("the name of a thread or process is a capital with letters, digits and _ behind it, not as in %q", text)
	}
	return name, n, nil
}

// Plain is a plain statement, read.
type Plain struct {
	Words   []Word
	Options []Option
	Expect  Expectation
}

// ParsePlain reads a plain statement after Expand.
func ParsePlain(text string) (Plain, error) {
	parts, err := cutAt(text, "->")
	if err != nil {
		return Plain{}, err
	}
	if len(parts) > 2 {
		return Plain{}, fmt.Errorf("more than one arrow")
	}
	var p Plain
	if p.Words, p.Options, err = Words(parts[0]); err != nil {
		return Plain{}, err
	}
	if len(p.Words) == 0 {
		return Plain{}, fmt.Errorf("no statement before the arrow or the options")
	}
	if len(parts) == 2 {
		if p.Expect, err = ParseExpectation(parts[1]); err != nil {
			return Plain{}, err
		}
	}
	return p, nil
}
