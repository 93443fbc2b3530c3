package script

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Word is one word of a statement. A quoted one is taken literally: it is no
// option, pattern or separator.
type Word struct {
	Text   string
	Quoted bool
}

// Option is name=value.
type Option struct {
	Name, Value string
	Quoted      bool // the value was a string literal
}

func blank(c byte) bool { return c == ' ' || c == '\t' || c == '\r' }

// literal gives the end of the string literal that begins at s[i].
func literal(s string, i int) (end int, err error) {
	for j := i + 1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case '"':
			return j + 1, nil
		}
	}
	return 0, fmt.Errorf("string literal is not closed")
}

// separate calls at with the place and the raw text of each word, literals and
// all, until at returns false.
func separate(s string, at func(pos int, raw string) bool) error {
	for i := 0; i < len(s); {
		if blank(s[i]) {
			i++
			continue
		}
		start := i
		for i < len(s) && !blank(s[i]) {
			if s[i] != '"' {
				i++
				continue
			}
			end, err := literal(s, i)
			if err != nil {
				return err
			}
			i = end
		}
		if !at(start, s[start:i]) {
			return nil
		}
	}
	return nil
}

// uncomment removes the comment and the blanks around the rest.
func uncomment(line string) (string, error) {
	for i := 0; i < len(line); i++ {
		switch {
		case line[i] == '#' && (i == 0 || blank(line[i-1])):
			return strings.Trim(line[:i], " \t\r"), nil
		case line[i] == '"':
			end, err := literal(line, i)
			if err != nil {
				return strings.Trim(line, " \t\r"), err
			}
			i = end - 1
		}
	}
	return strings.Trim(line, " \t\r"), nil
}

// cutBlank splits s behind its first word.
func cutBlank(s string) (first, rest string) {
	if i := strings.IndexAny(s, " \t\r"); i >= 0 {
		return s[:i], strings.TrimSpace(s[i:])
	}
	return s, ""
}

// cutAt splits s at every word that is exactly sep.
func cutAt(s, sep string) ([]string, error) {
	var parts []string
	start := 0
	err := separate(s, func(pos int, raw string) bool {
		if raw == sep {
			parts = append(parts, strings.TrimSpace(s[start:pos]))
			start = pos + len(sep)
		}
		return true
	})
	return append(parts, strings.TrimSpace(s[start:])), err
}

// cutColon splits s behind the first word that ends in a colon.
func cutColon(s string) (head, body string, ok bool) {
	_ = separate(s, func(pos int, raw string) bool {
		if strings.HasSuffix(raw, ":") {
			end := pos + len(raw)
			head, body, ok = s[:end-1], strings.TrimSpace(s[end:]), true
		}
		return !ok
	})
	return head, body, ok
}

// optionName is what may stand before an equals sign.
var optionName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// Words reads a statement's words and options. A string literal stands for one
// word or for the whole value behind an equals sign; elsewhere it is an error.
func Words(s string) (words []Word, options []Option, err error) {
	var bad error
	err = separate(s, func(_ int, raw string) bool {
		name, value, found := strings.Cut(raw, "=")
		if found = found && optionName.MatchString(name); !found {
			value = raw
		}
		quoted := strings.HasPrefix(value, `"`)
		if quoted {
			if value, bad = strconv.Unquote(value); bad != nil {
				bad = fmt.Errorf("in %s is no Go string literal", raw)
			}
		} else if strings.Contains(value, `"`) {
			bad = fmt.Errorf("a quote inside the word %s: quote the whole word or the whole value", raw)
		}
		if found {
			options = append(options, Option{name, value, quoted})
		} else {
			words = append(words, Word{value, quoted})
		}
		return bad == nil
	})
	if err = cmp.Or(bad, err); err != nil {
		return nil, nil, err
	}
	return words, options, nil
}
