package ptx

import (
	"fmt"
	"strings"
)

// token is a word of the text.
type token struct {
	kind byte // 'i' a name, 'n' a number, 's' a string, 0 the end, else the character itself
	text string
	line int
}

// lineError says which line is refused.
func lineError(line int, format string, args ...any) error {
	return fmt.Errorf("ptx: line %d: %s", line, fmt.Sprintf(format, args...))
}

func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c == '%' || c == '.'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// scan cuts a text into tokens. Names hold their dots: ld.global.v4.f32, %tid.x.
func scan(text string) ([]token, error) {
	var tokens []token
	line := 1
	for i := 0; i < len(text); {
		c, begin := text[i], i
		switch {
		case c == 0 && strings.Trim(text[i:], "\x00\n ") == "":
			i = len(text)
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case strings.HasPrefix(text[i:], "//"):
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case strings.HasPrefix(text[i:], "/*"):
			n := strings.Index(text[i:], "*/")
			if n < 0 {
				return nil, lineError(line, "a comment without an end")
			}
			line += strings.Count(text[i:i+n], "\n")
			i += n + 2
		case isLetter(c):
			i = name(text, i)
			tokens = append(tokens, token{'i', text[begin:i], line})
		case isDigit(c):
			for i < len(text) && (isDigit(text[i]) || isLetter(text[i]) && text[i] != '.' && text[i] != '%') {
				i++
			}
			tokens = append(tokens, token{'n', text[begin:i], line})
		case c == '"':
			n := strings.IndexAny(text[i+1:], "\"\n")
			if n < 0 || text[i+1+n] != '"' {
				return nil, lineError(line, "a string without an end")
			}
			i += n + 2
			tokens = append(tokens, token{'s', text[begin+1 : i-1], line})
		case strings.IndexByte("[](){}<>,;:+-=|!@", c) >= 0:
			i++
			tokens = append(tokens, token{c, text[begin:i], line})
		default:
			return nil, lineError(line, "%q is in no PTX that is known here", c)
		}
	}
	return append(tokens, token{0, "end of text", line}), nil
}

// name is where the name that begins at i ends. Two colons are part of it: .shared::cta.
func name(text string, i int) int {
	for i < len(text) && (isLetter(text[i]) || isDigit(text[i]) || strings.HasPrefix(text[i:], "::")) {
		if text[i] == ':' {
			i++
		}
		i++
	}
	return i
}
