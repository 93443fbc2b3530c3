// Package nvrtc compiles CUDA C with NVIDIA's run-time compiler, which needs neither a GPU
// nor a driver. All that goes in is given by value, and what would read more is refused
// (SPEC K6).
//
// A Library is the compiler in this process. Its front end runs one compile at a time, a
// text can make it overflow its stack, which ends the process, and nothing stops it: Helpers
// compiles in processes of their own. Both are safe for concurrent use.
package nvrtc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Request is all that a compile depends on, the compiler aside.
type Request struct {
	Text     string
	Target   string // sm_90: machine code of that, with PTX; compute_90: PTX alone
	Options  []string
	Defines  map[string]string
	Includes map[string]string // texts by the names that Text includes them by
}

// Output is what a compile gives.
type Output struct {
	Cubin []byte // empty for a compute_ target
	PTX   []byte // with the zero that ends it
	Log   string // what the compiler warned of
}

const (
	program = "/kiln/kernel.cu" // its name enters symbols, and a relative one the working directory
	deepest = 500               // brackets within each other: 3000 overflow the compiler's stack
)

var (
	target    = regexp.MustCompile(`^(sm|compute)_[0-9]+[af]?$`)
	option    = regexp.MustCompile(`^--?(std=c\+\+(11|14|17|20)|use_fast_math|(ftz|prec-sqrt|prec-div|fmad)=(true|false)|maxrregcount=[0-9]+|restrict|default-device|extra-device-vectorization|w)$`)
	macro     = regexp.MustCompile(`^[A-Za-z_]\w*(\([\w, .]*\))?$`)
	splices   = strings.NewReplacer("\\\r\n", "", "\\\n", "")
	directive = regexp.MustCompile(`(?:#|%:)(?:\s|/\*(?s:.*?)\*/)*(?:include|include_next|import|embed)\b(?:\s|/\*(?s:.*?)\*/)*("[^"\n]*"|<[^>\n]*>)?`)
	// reads is what makes a program depend on more than its text. A trigraph may hide one.
	reads      = regexp.MustCompile(`\b(?:__DATE__|__TIME__|__TIMESTAMP__|__has_include\w*|__has_embed)\b|\?\?[=/]`)
	hidden     = []string{"__DATE__", "__TIME__", "__TIMESTAMP__", "__has_include", "__has_embed"}
	trigraphs  = []string{"??=", "??/"}
	directives = []string{"include", "import", "embed"}
	under      = regexp.MustCompile(`\b_\w*`)
)

// errCompiler is an error of the compiler that says nothing about the text.
var errCompiler = errors.New("the compiler failed")

// failure is an error of a compile.
func failure(sentinel error, format string, args ...any) *fault.Error {
	return &fault.Error{Op: "cuda: compile", Backend: "cuda", Err: fmt.Errorf("%w: "+format, append([]any{sentinel}, args...)...)}
}

// unhashable refuses what a key would not cover.
func unhashable(field, format string, args ...any) error {
	err := failure(fault.ErrInvalid, format, args...)
	err.Reason, err.Field = fault.KeyRefused, field
	return err
}

// mostText is the most bytes that the texts of a request may have. A helper has some seven
// times as many of a text of comments, which the compiler reads and forgets: it bears that
// within what it may take.
const mostText = 256 << 20

// bytes is what the texts of a request have together, its options too: they may be many.
func (r *Request) bytes() int {
	n := len(r.Text)
	for _, o := range r.Options {
		n += len(o)
	}
	for _, texts := range []map[string]string{r.Defines, r.Includes} {
		for name, text := range texts {
			n += len(name) + len(text)
		}
	}
	return n
}

// Check says what the compiler is not given: ErrTooLarge for texts of more than 256 MiB, and
// ErrInvalid, with the reason key_refused for what would read more than the request.
func (r *Request) Check() error {
	if n := r.bytes(); n > mostText {
		return failure(fault.ErrTooLarge, "texts of %d bytes, want at most %d together: put large constants into a buffer", n, mostText)
	}
	if !target.MatchString(r.Target) {
		return failure(fault.ErrInvalid, "target %q: want one such as sm_90 or compute_90", r.Target)
	}
	for _, o := range r.Options {
		if !option.MatchString(o) {
			return unhashable("options", "option %q: want -std=c++11 to c++20, -use_fast_math, -ftz, -prec-div, -prec-sqrt or -fmad with =true or =false, -maxrregcount=, -restrict, -default-device, -extra-device-vectorization or -w; macros go into Defines, headers into Includes", o)
		}
	}
	for name, value := range r.Defines {
		if !macro.MatchString(name) || strings.ContainsAny(value, "\r\n\v\\\x00") || strings.Contains(value, "/*") {
			return failure(fault.ErrInvalid, "define %q as %q: want a macro's name, and a value of one line without a backslash or a comment", name, value)
		}
	}
	text := r.text()
	if err := r.check("text", "text", text); err != nil {
		return err
	}
	var all strings.Builder
	all.WriteString(text)
	for _, name := range slices.Sorted(maps.Keys(r.Includes)) {
		if name == "" || strings.ContainsAny(name, "\x00\r\n\v\"<>\\") {
			return failure(fault.ErrInvalid, "include %q: want a name that a line can have in quotes", name)
		}
		if err := r.check("includes", "include "+name, r.Includes[name]); err != nil {
			return err
		}
		all.WriteString(r.Includes[name])
	}
	// Names that are pasted may come from any of the texts.
	if whole := joined(all.String()); strings.Contains(whole, "##") || strings.Contains(whole, "%:%:") {
		if part := pasted(whole); part != "" {
			return unhashable("text", "%q in a text with ##: pasted, it may stand for what is not in the key", part)
		}
	}
	return nil
}

// check looks at one of the texts. It does not tell code from comments: what would be
// refused in code is refused in a comment, too.
func (r *Request) check(field, what, text string) error {
	if strings.Contains(text, "\x00") {
		return unhashable(field, "%s: it has a zero, where the compiler would stop", what)
	}
	if strings.Contains(text, "\v") || strings.Count(text, "\r") != strings.Count(text, "\r\n") {
		return unhashable(field, "%s: a vertical tab, or a carriage return that ends no line: compilers differ in what such a line is", what)
	}
	depth, most := 0, 0
	for i := range len(text) {
		switch text[i] {
		case '(', '[', '{':
			depth++
			most = max(most, depth)
		case ')', ']', '}':
			depth = max(0, depth-1)
		}
	}
	if most > deepest {
		return failure(fault.ErrInvalid, "%s: %d brackets within each other: want at most %d, the compiler bears no more", what, most, deepest)
	}
	// A text may be of many megabytes, which regular expressions take seconds for: they see
	// only what has a word that they look for.
	text = joined(text)
	if mentions(text, hidden) || mentions(text, trigraphs) {
		if found := reads.FindString(text); found != "" {
			return unhashable(field, "%s: %q: what it stands for is not in the key", what, found)
		}
	}
	if !mentions(text, directives) {
		return nil
	}
	for _, m := range directive.FindAllStringSubmatch(text, -1) {
		name := strings.Trim(m[1], `"<>`)
		if _, known := r.Includes[name]; !known || name == "" {
			return unhashable("includes", "%s: %s: want #include of a name that is in Includes, which has %q", what, m[0], slices.Sorted(maps.Keys(r.Includes)))
		}
	}
	return nil
}

// mentions reports whether a text has one of these words, as a part of others too.
func mentions(text string, words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool { return strings.Contains(text, word) })
}

// joined is a text as it is, and as it is where lines that end with a backslash go on in
// the next: compilers differ in whether there may be spaces behind it.
func joined(text string) string {
	if !strings.Contains(text, "\\") {
		return text
	}
	all := text
	plain, spaced := splices.Replace(text), splicedBehindSpaces(text)
	if plain != text {
		all += "\n" + plain
	}
	if spaced != plain {
		all += "\n" + spaced
	}
	return all
}

// splicedBehindSpaces is a text without its backslashes that end a line, spaces aside.
func splicedBehindSpaces(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "\\")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		if end := strings.TrimLeft(after, " \t\f\r"); strings.HasPrefix(end, "\n") {
			text = end[1:]
		} else {
			b.WriteByte('\\')
			text = after
		}
	}
}

// pasted is a name that begins one which is refused; empty: there is none.
func pasted(text string) string {
	for _, part := range under.FindAllString(text, -1) {
		if slices.ContainsFunc(hidden, func(name string) bool { return strings.HasPrefix(name, part) }) {
			return part
		}
	}
	return ""
}

// text is the program behind its macros.
func (r *Request) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.Defines)) {
		fmt.Fprintf(&b, "#define %s %s\n", name, r.Defines[name])
	}
	b.WriteString("#line 1\n")
	b.WriteString(r.Text)
	return b.String()
}

// options are the compiler's, with those that keep it from a driver, from files, from the
// process's stack limit, and from the clock and the process's number in names.
func (r *Request) options() []string {
	sum := sha256.Sum256([]byte(r.text()))
	fixed := []string{"-arch=" + r.Target, "-no-cache", "-no-source-include", "-modify-stack-limit=false",
		fmt.Sprintf("-frandom-seed=%d", binary.LittleEndian.Uint32(sum[:]))}
	if !slices.ContainsFunc(r.Options, func(o string) bool { return strings.Contains(o, "std=") }) {
		fixed = append(fixed, "-std=c++17")
	}
	return append(fixed, r.Options...)
}
