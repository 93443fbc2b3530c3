package opencl

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

var (
	option    = regexp.MustCompile(`^-(cl-[A-Za-z0-9=.-]+|w|Werror|g)$`) // no +: C++ has texts that bareOf does not know
	macro     = regexp.MustCompile(`^[A-Za-z_]\w*(\([\w, .]*\))?$`)
	directive = regexp.MustCompile(`^\s*(?:#|%:)\s*(\w*)\s*(.*?)\s*$`)
	quoted    = regexp.MustCompile(`^(?:"([^"]+)"|<([^>]+)>)$`)
	// reads is what makes a program depend on more than its text.
	reads  = regexp.MustCompile(`\b(__DATE__|__TIME__|__TIMESTAMP__|__BASE_FILE__|__has_include\w*|__has_embed|asm|__asm|__asm__|GCC\s+dependency)\b|\?\?[=/]`)
	hidden = []string{"__DATE__", "__TIME__", "__TIMESTAMP__", "__BASE_FILE__", "__has_include", "__has_embed", "__asm__"}
	paste  = regexp.MustCompile(`##|%:%:`)
	under  = regexp.MustCompile(`\b_\w*`)
)

// unhashable refuses a source whose key would not cover all that goes in (SPEC K6).
func unhashable(field, format string, args ...any) error {
	err := failure("compile", fault.ErrInvalid, format, args...)
	err.Reason, err.Field = fault.KeyRefused, field
	return err
}

// codeOf is a source's code, and what the driver is given for it.
func codeOf(src gpuexec.Source) (code gpuexec.Code, text, options string, err error) {
	code, ok := src.Spec.(gpuexec.Code)
	if !ok {
		return code, "", "", failure("compile", fault.ErrUnsupported, "a source of type %T, want a gpuexec.Code", src.Spec)
	}
	text, options, err = textOf(code)
	return code, text, options, err
}

// textOf is what the driver is given for a code: one text, and options that read nothing.
func textOf(c gpuexec.Code) (text, options string, err error) {
	switch {
	case c.Language != Language:
		return "", "", failure("compile", fault.ErrUnsupported, "language %q, want %q", c.Language, Language)
	case len(c.Constants) > 0:
		return "", "", failure("compile", fault.ErrUnsupported, "%s has no specialisation constants: use Defines", Language)
	}
	for _, o := range c.Options {
		if !option.MatchString(o) {
			return "", "", unhashable("options", "option %q: want one that begins with -cl-, or -w, -Werror or -g; macros go into Defines, headers into Includes", o)
		}
	}
	x := expansion{includes: c.Includes, once: make(map[string]bool)}
	for _, name := range slices.Sorted(maps.Keys(c.Defines)) {
		value := c.Defines[name]
		if !macro.MatchString(name) || strings.ContainsAny(value, "\r\n\\") {
			return "", "", failure("compile", fault.ErrInvalid, "define %q as %q: want a macro's name, and a value of one line without a backslash", name, value)
		}
		fmt.Fprintf(&x.out, "#define %s %s\n", name, value)
		bare, comment := bareOf(value, false)
		if comment {
			return "", "", failure("compile", fault.ErrInvalid, "define %q as %q: its comment has no end", name, value)
		}
		if err := x.refuseReads(bare); err != nil {
			return "", "", err
		}
	}
	if err := x.add("", c.Text); err != nil {
		return "", "", err
	}
	return x.out.String(), strings.Join(c.Options, " "), nil
}

// refuseReads refuses a name of what is not in the key, and the beginning of one in a
// program that pastes names.
func (x *expansion) refuseReads(code string) error {
	if found := reads.FindString(code); found != "" {
		return unhashable("text", "%q in the text: what it stands for is not in the key", found)
	}
	x.pastes = x.pastes || paste.MatchString(code)
	for _, part := range under.FindAllString(code, -1) {
		if slices.ContainsFunc(hidden, func(name string) bool { return strings.HasPrefix(name, part) }) {
			x.begins = part
		}
	}
	if x.pastes && x.begins != "" {
		return unhashable("text", "%q in a text with ##: pasted, it may stand for what is not in the key", x.begins)
	}
	return nil
}

// spaced has a space for whatever a compiler may take for one.
func spaced(code string) string {
	return strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return ' '
		}
		return r
	}, code)
}

// expansion puts texts in the place of the lines that include them.
type expansion struct {
	includes map[string]string
	once     map[string]bool // those that say that they are to come once, and did
	within   []string        // the includes that the text in hand is part of
	pastes   bool            // a line has ##
	begins   string          // a name that begins one which is refused; empty: none
	out      strings.Builder
}

// add appends a text; name is empty for the program itself.
func (x *expansion) add(name, text string) error {
	if strings.ContainsAny(strings.ReplaceAll(text, "\r\n", "\n"), "\r\v\x00") {
		return unhashable("text", "a carriage return without a newline, a vertical tab or a zero: compilers differ in where a line begins then")
	}
	x.line(1, name)
	comment := false
	number := 0
	for len(text) > 0 {
		whole, rest, plain := "", text, ""
		began, more := number, true
		for ; more && rest != ""; number++ { // a backslash at its end joins a line to the next
			var line string
			line, rest, _ = strings.Cut(rest, "\n")
			whole += line + "\n"
			bare := strings.TrimRight(line, " \t\r\v\f")
			more = strings.HasSuffix(bare, `\`)
			plain += strings.TrimSuffix(bare, `\`)
		}
		if more {
			return unhashable("text", "line %d: the text ends with a backslash", number)
		}
		text = rest
		var code string
		code, comment = bareOf(plain, comment)
		if err := x.refuseReads(code); err != nil {
			return err
		}
		d := directive.FindStringSubmatch(code)
		seen := directive.FindStringSubmatch(spaced(code))
		switch {
		case seen != nil && (d == nil || d[1] != seen[1]):
			return unhashable("text", "line %d: #%s with a space that is not ASCII", began+1, seen[1])
		case d == nil:
			x.out.WriteString(whole)
		case d[1] == "pragma" && strings.HasPrefix(d[2], "once") && name != "":
			x.once[name] = true
			x.line(number+1, name)
			x.reopen(comment)
		case d[1] == "include":
			if err := x.include(d[2]); err != nil {
				return err
			}
			x.line(number+1, name)
			x.reopen(comment)
		case comment && slices.Contains([]string{"error", "warning"}, d[1]):
			return unhashable("text", "line %d: #%s with a comment that goes on: compilers differ in whether it is one", began+1, d[1])
		case slices.Contains([]string{"include_next", "import", "embed"}, d[1]):
			return unhashable("includes", "line %d: #%s: want #include of a name that is in Includes", began+1, d[1])
		default:
			x.out.WriteString(whole)
		}
	}
	if comment && name != "" {
		return unhashable("includes", "include %q: its last comment has no end", name)
	}
	return nil
}

// line says which line of which text comes next, for the build log.
func (x *expansion) line(number int, name string) {
	if name == "" {
		name = "text"
	}
	fmt.Fprintf(&x.out, "#line %d %q\n", number, name)
}

// reopen goes on with a comment that began on a line which was replaced.
func (x *expansion) reopen(comment bool) {
	if comment {
		x.out.WriteString("/*")
	}
}

func (x *expansion) include(operand string) error {
	const deepest = 64
	m := quoted.FindStringSubmatch(operand)
	if m == nil {
		return unhashable("includes", "#include %s: want a name in quotes that is in Includes", operand)
	}
	name := m[1] + m[2]
	text, known := x.includes[name]
	switch {
	case !known:
		return unhashable("includes", "#include %q: it is not in Includes, which has %q", name, slices.Sorted(maps.Keys(x.includes)))
	case len(x.within) == deepest:
		return failure("compile", fault.ErrInvalid, "#include %q: %d includes within each other", name, deepest)
	case x.once[name]:
		return nil
	}
	x.within = append(x.within, name)
	defer func() { x.within = x.within[:len(x.within)-1] }()
	return x.add(name, text)
}

// bareOf is a line with a space for each comment. comment says whether the line begins
// within one, and whether it ends so.
func bareOf(line string, comment bool) (string, bool) {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(line); i++ {
		next := line[i:min(i+2, len(line))]
		switch {
		case comment && next == "*/":
			comment = false
			i++
		case comment:
		case quote != 0 && line[i] == '\\':
			b.WriteString(next)
			i++
		case quote != 0:
			b.WriteByte(line[i])
			if line[i] == quote {
				quote = 0
			}
		case next == "//":
			return b.String(), false
		case next == "/*":
			comment = true
			b.WriteByte(' ')
			i++
		default:
			if line[i] == '"' || line[i] == '\'' {
				quote = line[i]
			}
			b.WriteByte(line[i])
		}
	}
	return b.String(), comment
}
