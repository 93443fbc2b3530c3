package opencl

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

func TestTextOf(t *testing.T) {
	includes := map[string]string{
		"a.h": "int a;\n", "b.h": "#include \"a.h\"\nint b;", "once.h": "#pragma once\nint once;\n",
		"dir/c.h": "int c;\n", "open.h": "int open; /* never closed\n",
	}
	for what, c := range map[string]struct{ text, want string }{
		"nothing to do":           {"int x;\nint y;\n", "#line 1 \"text\"\nint x;\nint y;\n"},
		"no newline at the end":   {"int x;", "#line 1 \"text\"\nint x;\n"},
		"an include":              {"int x;\n#include \"a.h\"\nint y;\n", "#line 1 \"text\"\nint x;\n#line 1 \"a.h\"\nint a;\n#line 3 \"text\"\nint y;\n"},
		"one in brackets":         {"#include <dir/c.h>\n", "#line 1 \"text\"\n#line 1 \"dir/c.h\"\nint c;\n#line 2 \"text\"\n"},
		"one in another":          {"#include \"b.h\"\n", "#line 1 \"text\"\n#line 1 \"b.h\"\n#line 1 \"a.h\"\nint a;\n#line 2 \"b.h\"\nint b;\n#line 2 \"text\"\n"},
		"spelt oddly":             {" %: /* so */ include /* far */ \"a.h\" // here\n", "#line 1 \"text\"\n#line 1 \"a.h\"\nint a;\n#line 2 \"text\"\n"},
		"over two lines":          {"#inc\\\nlude \"a.h\"\nint y;\n", "#line 1 \"text\"\n#line 1 \"a.h\"\nint a;\n#line 3 \"text\"\nint y;\n"},
		"once":                    {"#include \"once.h\"\n#include \"once.h\"\n", "#line 1 \"text\"\n#line 1 \"once.h\"\n#line 2 \"once.h\"\nint once;\n#line 2 \"text\"\n#line 3 \"text\"\n"},
		"in a comment":            {"/* a\n#include \"none.h\"\n*/ int x; // #include \"none.h\"\n", "#line 1 \"text\"\n/* a\n#include \"none.h\"\n*/ int x; // #include \"none.h\"\n"},
		"in a text":               {"constant char *s = \"/*\"; /*\n#include \"a.h\"\n*/\n", "#line 1 \"text\"\nconstant char *s = \"/*\"; /*\n#include \"a.h\"\n*/\n"},
		"and a comment begins":    {"#include \"a.h\" /* one\ntwo */ int x;\n", "#line 1 \"text\"\n#line 1 \"a.h\"\nint a;\n#line 2 \"text\"\n/*two */ int x;\n"},
		"a quote that never ends": {"#error don't\n#include \"a.h\"\n", "#line 1 \"text\"\n#error don't\n#line 1 \"a.h\"\nint a;\n#line 3 \"text\"\n"},
	} {
		got, _, err := textOf(gpuexec.Code{Language: Language, Text: c.text, Entry: "k", Includes: includes})
		if err != nil || got != c.want {
			t.Errorf("%s: %v\ngot  %q\nwant %q", what, err, got, c.want)
		}
	}
	text, options, err := textOf(gpuexec.Code{Language: Language, Text: "x", Entry: "k", Options: []string{"-cl-fast-relaxed-math", "-w"},
		Defines: map[string]string{"N": "a b", "F(x)": "(x + 1)", "E": ""}})
	if want := "#define E \n#define F(x) (x + 1)\n#define N a b\n#line 1 \"text\"\nx\n"; err != nil || text != want || options != "-cl-fast-relaxed-math -w" {
		t.Errorf("%v %q %q", err, text, options)
	}
}

// K6: what would read more than the code holds is refused, with the reason.
func TestUnhashable(t *testing.T) {
	for what, c := range map[string]gpuexec.Code{
		"a folder":              {Options: []string{"-I/usr/include"}},
		"a folder apart":        {Options: []string{"-I", "/usr/include"}},
		"two in one":            {Options: []string{"-cl-mad-enable -include x"}},
		"a file of options":     {Options: []string{"@file"}},
		"a header":              {Text: "#include \"none.h\""},
		"a header by a macro":   {Text: "#define H \"a.h\"\n#include H"},
		"the next header":       {Text: "#include_next \"a.h\""},
		"an import":             {Text: "#import \"a.h\""},
		"a look at the disk":    {Text: "#if __has_include(\"x\")\n#endif"},
		"the same by a define":  {Defines: map[string]string{"HAS": "__has_include"}},
		"the time":              {Text: "constant char t[] = __TIME__;"},
		"a file of bytes":       {Text: "void f() { asm(\".incbin \\\"x\\\"\"); }"},
		"a trigraph":            {Text: "??=include \"x\""},
		"a file by assembly":    {Text: "__asm__(\".inc\" \"bin \\\"x\\\"\");"},
		"an age":                {Text: "#pragma GCC dependency \"x\""},
		"C++":                   {Options: []string{"-cl-std=CLC++"}},
		"a return":              {Text: "int x;\r#include \"x\""},
		"a vertical tab":        {Text: "#\vinclude \"x\""},
		"a zero":                {Text: "#\x00include \"x\""},
		"a wide space":          {Text: "\u00a0#include \"x\""},
		"a wide space within":   {Text: "#\u00a0include \"x\""},
		"a comment in an error": {Text: "#error /*\n#include \"x\""},
		"one in a warning":      {Text: "# /**/ warning /*\n#include \"x\"\n*/"},
		"a pasted name":         {Text: "#define J(a,b) a##b\nint x = J(__TI, ME__);"},
		"one by a define":       {Text: "int x = J(__has, _embed);", Defines: map[string]string{"J(a,b)": "a %:%: b"}},
		"one of an include":     {Text: "#define J(a,b) a##b\n#include \"a.h\"", Includes: map[string]string{"a.h": "J(_, _DATE__)"}},
		"an open comment":       {Text: "#include \"a.h\"\n\"*/\" /*\"\n#include \"x\"", Includes: map[string]string{"a.h": "/*"}},
		"a last backslash":      {Text: "#include \"a.h\"", Includes: map[string]string{"a.h": "\" \\"}},
		"in an include":         {Text: "#include \"a.h\"", Includes: map[string]string{"a.h": "#include \"/etc/passwd\""}},
	} {
		c.Language, c.Entry = Language, "k"
		_, _, err := textOf(c)
		if reason, field := fault.ReasonOf(err); !errors.Is(err, fault.ErrInvalid) || reason != fault.KeyRefused || field == "" {
			t.Errorf("%s: %v, want ErrInvalid with key_refused", what, err)
		}
	}
	for what, c := range map[string]gpuexec.Code{
		"a circle":               {Text: "#include \"a.h\"", Includes: map[string]string{"a.h": "#include \"a.h\""}},
		"a define of two lines":  {Defines: map[string]string{"A": "1\n#include \"x\""}},
		"a define with no name":  {Defines: map[string]string{"A B": "1"}},
		"a define that goes on":  {Defines: map[string]string{"A": "1\\"}},
		"a define that is open":  {Defines: map[string]string{"A": "/*"}, Text: "\"*/\" /*\"\n#include \"x\""},
		"a define with a return": {Defines: map[string]string{"A": "1\r#include \"x\""}},
	} {
		c.Language, c.Entry = Language, "k"
		if _, _, err := textOf(c); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	for _, text := range []string{
		"// __DATE__ and __has_include, in a comment\r\nint x;\r\n", "#define J(a,b) a##b\n__kernel void J(k, _1)(__global int *_a) {}",
		"\f\n// µs\n#error it's \"/*\" // /*\n",
	} {
		if _, _, err := textOf(gpuexec.Code{Language: Language, Text: text}); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What is absent says what to install.
func TestUnavailable(t *testing.T) {
	err := unavailable("no such library")
	if !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "ocl-icd-libopencl1") || !strings.Contains(err.Error(), "pocl-opencl-icd") {
		t.Error(err)
	}
}
