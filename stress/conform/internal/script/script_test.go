package script

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestShippedScriptsParse(t *testing.T) {
	names, _ := filepath.Glob("../../testdata/scripts/*.kiln")
	if len(names) != 11 {
		t.Fatalf("%d scripts, want 11", len(names))
	}
	cases := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(name, text)
		if err != nil {
			t.Error(err)
		}
		cases += len(f.Cases)
		for _, c := range f.Cases {
			for _, s := range c.Statements {
				checkStatement(t, f.Name, c.ID, s, Vars{})
			}
		}
	}
	if cases != 249 {
		t.Errorf("%d cases, want 249", cases)
	}
}

// checkStatement reads a statement down to its words, loops with their first item.
func checkStatement(t *testing.T, file, id string, s Statement, v Vars) {
	t.Helper()
	if s.Err != nil {
		t.Errorf("%s: %v", id, s.Err)
		return
	}
	if s.Thread != "" {
		if _, _, err := SplitThread(s.Thread); err != nil {
			t.Errorf("%s:%d %s: %v", file, s.Line, id, err)
		}
		v = v.WithT(3)
	}
	switch {
	case s.Loop != nil:
		items, err := Items(s.Loop.List)
		if err != nil || len(items) == 0 {
			t.Errorf("%s:%d %s: items of %q: %v, %v", file, s.Line, id, s.Loop.List, items, err)
			return
		}
		for _, item := range items[:1] {
			for _, inner := range s.Loop.Body {
				checkStatement(t, file, id, inner, v.WithI(item))
			}
		}
	case s.Each != nil:
		checkStatement(t, file, id, s.Each.Body, v)
	case s.Watch != nil:
		checkStatement(t, file, id, *s.Watch, v)
	default:
		if strings.HasPrefix(s.Text, "await ") { // its expectation is each member's own
			v = v.WithT(0)
		}
		text, err := Expand(s.Text, v)
		if err == nil {
			_, err = ParsePlain(text)
		}
		if err != nil {
			t.Errorf("%s:%d %s: %s: %v", file, s.Line, id, s.Text, err)
		}
	}
}

func TestWords(t *testing.T) {
	tests := []struct {
		in      string
		words   []string
		options string
	}{
		{`c get k1`, []string{"c", "get", "k1"}, ""},
		{`s put "a\x00b" v1`, []string{"s", "put", "a\x00b", "v1"}, ""},
		{`write f ""`, []string{"write", "f", ""}, ""},
		{`env A=" cpu:5 ; gpu:6 "`, []string{"env"}, "A= cpu:5 ; gpu:6 "},
		{`key a attr.post_ops="sum:1,relu:0" shape=[[1,2],[3]]`, []string{"key", "a"}, "attr.post_ops=sum:1,relu:0;shape=[[1,2],[3]]"},
		{`x get 0 data=w=1`, []string{"x", "get", "0"}, "data=w=1"},
		{`put "x=y" 3=4 -1`, []string{"put", "x=y", "3=4", "-1"}, ""},
		{`p get [[1,2],[3]] n`, []string{"p", "get", "[[1,2],[3]]", "n"}, ""},
		{`op none valid=`, []string{"op", "none"}, "valid="},
	}
	for _, tt := range tests {
		words, options, err := Words(tt.in)
		if err != nil {
			t.Errorf("%s: %v", tt.in, err)
			continue
		}
		var got []string
		for _, w := range words {
			got = append(got, w.Text)
		}
		var opts []string
		for _, o := range options {
			opts = append(opts, o.Name+"="+o.Value)
		}
		if !slices.Equal(got, tt.words) || strings.Join(opts, ";") != tt.options {
			t.Errorf("%s: %q %q", tt.in, got, opts)
		}
	}
	for _, in := range []string{`a "b`, `a b"c"`, `a=x"y"`, `a "\q"`, `a="b"c`} {
		if w, o, err := Words(in); err == nil {
			t.Errorf("%s: %v %v, want an error", in, w, o)
		}
	}
}

func TestItems(t *testing.T) {
	tests := map[string]string{
		"0..3":                                 "0;1;2;3",
		"k8..k11":                              "k8;k9;k10;k11",
		"a,b":                                  "a;b",
		"":                                     "",
		"1..0":                                 "",
		"-2..1":                                "-2;-1;0;1",
		"1,15..17,x":                           "1;15;16;17;x",
		"[[1,2],[3]],[[4]]":                    "[[1,2],[3]];[[4]]",
		"tpu:0,gpu:x":                          "tpu:0;gpu:x",
		"remove d/size.txt,write d/size.txt 7": "remove d/size.txt;write d/size.txt 7",
		"one,two/kernel.bin":                   "one;two/kernel.bin",
		"shape=[[1,2],[3]],desc=d2":            "shape=[[1,2],[3]];desc=d2",
		`"a,b",c`:                              `"a,b";c`,
		"k0..j3":                               "k0..j3",
		"../up":                                "../up",
	}
	for list, want := range tests {
		got, err := Items(list)
		if err != nil || strings.Join(got, ";") != want {
			t.Errorf("%s: %q, %v; want %s", list, got, err, want)
		}
	}
	if _, err := Items("0..99999999"); err == nil {
		t.Error("a hundred million items are let through")
	}
}

func TestExpand(t *testing.T) {
	v := Vars{}.WithI("7").WithT(3)
	tests := map[string]string{
		"k{i}":             "k7",
		"{i*2+1}":          "15",
		"{i%4}":            "3",
		"k{7-i}x{t}":       "k0x3",
		"{i/200*100+i%6}":  "1",
		"{1000+i*6}":       "1042",
		"{t*6+i}":          "25",
		"{i - t - 1}":      "3",
		"{-i+t}":           "-4",
		"{2+3*t%2}":        "3",
		`{"a":1} {x} {} {`: `{"a":1} {x} {} {`,
		"{12}":             "{12}",
		"{i}{i}":           "77",
	}
	for in, want := range tests {
		if got, err := Expand(in, v); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %s", in, got, err, want)
		}
	}
	for _, in := range []string{"{i/0}", "{i+}", "{i t}", "{i*9223372036854775807}", "{9223372036854775807+i}", "{i%(t)}x{i%0}", "{2i}", "{i//2}", "{i2}", "{*i}", "{i*t*}"} {
		if got, err := Expand(in, v); err == nil {
			t.Errorf("%s: %q, want an error", in, got)
		}
	}
	for _, in := range []string{"{i}", "{t}"} {
		if got, err := Expand(in, Vars{}); err == nil {
			t.Errorf("%s outside: %q, want an error", in, got)
		}
	}
	if got, err := Expand("{i} {i", Vars{}.WithI("write f 7")); err != nil || got != "write f 7 {i" {
		t.Errorf("an item of several words: %q, %v", got, err)
	}
	if _, err := Expand("{i+1}", Vars{}.WithI("a")); err == nil {
		t.Error("a word is counted with")
	}
}

func TestStructure(t *testing.T) {
	text := strings.Join([]string{
		"#\"head of the script", "", "case A rules=C1,C2 needs=x # why",
		`T*8: for 0..9: c get k{i} -> k{i} by=hit`,
		`for 0..9 as=small: s get x{i}`,
		`for 1..8: process B ; B: for 0..9: s put k{i} v ; sleep {i*9}ms ; kill B`,
		`flip-each s:k/key.bin bits: s get k -> miss reason=*`,
		`watch c len -> 0..3`,
		"env A=\" # ; \" # comment",
		`for tpu:0,gpu:x: x setcap {i} 5 -> error invalid`,
	}, "\r\n")
	f, err := Parse("x.kiln", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c := f.Cases[0]
	if c.ID != "A" || c.Line != 3 || !slices.Equal(c.Rules, []string{"C1", "C2"}) || !slices.Equal(c.Needs, []string{"x"}) {
		t.Errorf("case %+v", c)
	}
	s := c.Statements
	if s[0].Thread != "T*8" || s[0].Loop.List != "0..9" || s[0].Loop.Body[0].Text != "c get k{i} -> k{i} by=hit" {
		t.Errorf("thread loop %+v", s[0])
	}
	if s[1].Loop.As != "small" || s[1].Loop.List != "0..9" {
		t.Errorf("measured loop %+v", s[1].Loop)
	}
	if b := s[2].Loop.Body; len(b) != 4 || b[1].Thread != "B" || b[1].Loop.List != "0..9" || len(b[1].Loop.Body) != 1 {
		t.Errorf("nested loop %+v", b)
	}
	if e := s[3].Each; e.Verb != "flip-each" || e.Head != "s:k/key.bin bits" || e.Body.Text != "s get k -> miss reason=*" {
		t.Errorf("each %+v", e)
	}
	if s[4].Watch.Text != "c len -> 0..3" || s[5].Text != `env A=" # ; "` || s[6].Loop.List != "tpu:0,gpu:x" {
		t.Errorf("rest %+v", s[4:])
	}
}

func TestBadStatementsFailTheirCaseOnly(t *testing.T) {
	for _, bad := range []string{
		`for 0..9: for 0..9: a b`, `a b ; c d`, `A:`, `A: B: c len`, `for 0..9 c len`, `for 0..9: a ; ; b`, `A: for 0..1: for 0..1: c len`,
		`watch for 0..1: c len`, `flip-each f s get k`, `c get "k`, `watch A: c len`,
	} {
		f, err := Parse("x", []byte("case A rules=K1\nc len\n"+bad+"\ncase B rules=K1\nc len"))
		if err != nil || len(f.Cases) != 2 {
			t.Errorf("%s: %v", bad, err)
			continue
		}
		got := f.Cases[0].Statements[1].Err
		if got == nil || got.Line != 3 || got.File != "x" {
			t.Errorf("%s: %v, want an error with its place", bad, got)
		}
		if f.Cases[0].Statements[0].Err != nil || f.Cases[1].Statements[0].Err != nil {
			t.Errorf("%s: other statements suffer", bad)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for text, line := range map[string]int{
		"c len": 1, "case A rules=K1\n\ncase A rules=K1": 3, "case": 1, "case A": 1, "case A B rules=K1": 1, "case A rules=K1 wants=x": 1,
		"\n\"x\ncase A rules=K1": 2, "\xff": 1,
	} {
		_, err := Parse("x", []byte(text))
		var e *Error
		if !errors.As(err, &e) || e.Line != line {
			t.Errorf("%q: %v, want an error in line %d", text, err, line)
		}
	}
}

func TestPlain(t *testing.T) {
	p, err := ParsePlain(`c get k create=v -> v by=miss | error closed`)
	if err != nil || len(p.Words) != 3 || len(p.Options) != 1 || !p.Expect.Given() || p.Expect.String() != "v by=miss | error closed" {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{"", "-> v", "a -> b -> c", "a ->", `a -> "`} {
		if p, err := ParsePlain(bad); err == nil {
			t.Errorf("%q: %+v", bad, p)
		}
	}
}

func FuzzParse(f *testing.F) {
	names, _ := filepath.Glob("../../testdata/scripts/*.kiln")
	for _, name := range names {
		text, _ := os.ReadFile(name)
		f.Add(text)
	}
	f.Add([]byte("case A rules=K1\nT*8: for a,\"b c\",[1,2] as=m: x {i*2+t} ; y -> * | 1..2 # c"))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, _ := Parse("x", text)
		for _, c := range file.Cases {
			for _, s := range c.Statements {
				exercise(s, Vars{}.WithT(1))
			}
		}
	})
}

// exercise reads on as far as it can; that nothing panics is the test.
func exercise(s Statement, v Vars) {
	switch {
	case s.Err != nil:
		_ = s.Err.Error()
	case s.Loop != nil:
		items, _ := Items(s.Loop.List)
		for _, item := range items[:min(len(items), 3)] {
			for _, inner := range s.Loop.Body {
				exercise(inner, v.WithI(item))
			}
		}
	case s.Each != nil:
		exercise(s.Each.Body, v)
	case s.Watch != nil:
		exercise(*s.Watch, v)
	default:
		text, err := Expand(s.Text, v)
		if err != nil {
			return
		}
		if p, err := ParsePlain(text); err == nil {
			p.Expect.Match(Result{Words: []string{"1", "x"}, Fields: []Field{{"by", "hit"}}})
			_ = p.Expect.String()
		}
	}
}
