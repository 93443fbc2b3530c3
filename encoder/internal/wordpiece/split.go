package wordpiece

import (
	"bytes"
	"context"
	"encoding/json"
)

const blanks = " \t\r\n"

// split gives the fields of an object, as encoding/json does, which looks through all of it twice
// before it gives one and heeds no context. It does not check the value of the field big: who
// reads that does. No fields: encoding/json says what is wrong.
func split(ctx context.Context, text []byte, big string) (fields, error) {
	rest, ok := bytes.CutPrefix(bytes.TrimLeft(text, blanks), []byte("{"))
	rest = bytes.Trim(rest, blanks)
	o := fields{}
	for ok && string(rest) != "}" {
		var name string
		end := quoted(rest)
		if end == 0 || json.Unmarshal(rest[:end], &name) != nil {
			return nil, nil
		}
		if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest[end:], blanks), []byte(":")); !ok {
			return nil, nil
		}
		end, err := value(ctx, rest)
		if end == 0 || err != nil {
			return nil, err
		}
		raw := bytes.Trim(rest[:end], blanks)
		if _, twice := o[name]; name == big && twice || name != big && !json.Valid(raw) {
			return nil, nil
		}
		o[name] = raw
		if rest = rest[end:]; rest[0] == ',' {
			rest = bytes.TrimLeft(rest[1:], blanks)
			ok = string(rest) != "}"
		}
	}
	if !ok {
		return nil, nil
	}
	return o, nil
}

// quoted is the length of the string that text begins with; 0 where there is none.
func quoted[T string | []byte](text T) int {
	if len(text) == 0 || text[0] != '"' {
		return 0
	}
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return 0
}

// value is where the value of a field ends: at the next comma or brace that is not in it; 0 where
// none is.
func value(ctx context.Context, text []byte) (end int, err error) {
	depth := 0
	for at, look := 0, 0; at < len(text); at++ {
		if at >= look {
			if err := ctx.Err(); err != nil {
				return 0, err
			}
			look = at + bytesAtOnce
		}
		switch text[at] {
		case '"':
			n := quoted(text[at:])
			if n == 0 {
				return 0, nil
			}
			at += n - 1
		case '{', '[':
			depth++
		case ',', '}', ']':
			switch {
			case depth == 0:
				return at, nil
			case text[at] != ',':
				depth--
			}
		}
	}
	return 0, nil
}
