package limit

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Word is how Unlimited is written, in lower case only.
const Word = "unlimited"

// Limit is a capacity: a count, or Unlimited. The zero Limit means "not given"; a
// Config that has one then takes its default (Or). Limits can be compared with ==.
type Limit struct {
	form  form
	count int64 // only with form counted, so that equal limits are == equal
}

type form uint8

const (
	absent form = iota
	counted
	unbounded
)

// Unlimited is the capacity without a bound.
var Unlimited = Limit{form: unbounded}

// Of is a capacity of n. It keeps a negative n, which Validate refuses, so that Of
// can stand in a literal of a Config.
func Of(n int64) Limit { return Limit{form: counted, count: n} }

// Parse reads a plain decimal (digits only: no sign, blank, fraction or unit)
// or the word "unlimited". Anything else, and a number above 2^63-1, is a
// fault.ErrInvalid that says what is wrong.
func Parse(s string) (Limit, error) {
	if s == Word {
		return Unlimited, nil
	}
	if why := notDecimal(s); why != "" {
		return Limit{}, fault.Invalidf("limit: parse", "%s: want a whole number such as 64, or %s", why, Word)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil { // it has digits only, so it is too large
		return Limit{}, fault.Invalidf("limit: parse", "%s is above 2^63-1: want a smaller number, or %s", cut(s), Word)
	}
	return Of(n), nil
}

// notDecimal says why s is no plain decimal; empty if it is one.
func notDecimal(s string) string {
	if s == "" {
		return "the value is empty"
	}
	for i := range len(s) {
		if c := s[i]; c < '0' || c > '9' {
			if i == 0 && (c == '-' || c == '+') {
				return fmt.Sprintf("%s has a sign", cut(s))
			}
			return fmt.Sprintf("%s is not a plain decimal", cut(s))
		}
	}
	return ""
}

// cut quotes a text for a log line, and shortens it where it is long.
func cut(s string) string {
	const most = 40
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Value gives the count and true; or 0 and false if l is unlimited or not given.
func (l Limit) Value() (int64, bool) { return l.count, l.form == counted }

// Given reports whether l is a count or Unlimited.
func (l Limit) Given() bool { return l.form != absent }

// IsUnlimited reports whether l is Unlimited.
func (l Limit) IsUnlimited() bool { return l.form == unbounded }

// Or gives l if it is given, else otherwise.
func (l Limit) Or(otherwise Limit) Limit {
	if l.Given() {
		return l
	}
	return otherwise
}

// Allows reports whether n is within l. A limit that is not given allows
// everything, so take the default with Or first.
func (l Limit) Allows(n int64) bool { return l.form != counted || n <= l.count }

// MiB converts l from MiB to bytes. A count that int64 bytes cannot express becomes
// Unlimited.
func (l Limit) MiB() Limit {
	if l.form != counted {
		return l
	}
	if l.count > math.MaxInt64>>20 {
		return Unlimited
	}
	return Of(l.count << 20)
}

// Validate gives a fault.ErrInvalid if the count is negative.
func (l Limit) Validate() error {
	if l.count < 0 {
		return fault.Invalidf("limit: validate", "capacity %d is negative: want 0 or more, or %s", l.count, Word)
	}
	return nil
}

// String gives the decimal count, "unlimited", or the empty string if l is not given.
func (l Limit) String() string {
	switch l.form {
	case counted:
		return strconv.FormatInt(l.count, 10)
	case unbounded:
		return Word
	}
	return ""
}

// MarshalText gives String, so that flag.TextVar takes a Limit.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText does what Parse does. On an error l stays as it is.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// MarshalJSON gives a number, "unlimited", or null if l is not given.
func (l Limit) MarshalJSON() ([]byte, error) {
	switch l.form {
	case counted:
		return strconv.AppendInt(nil, l.count, 10), nil
	case unbounded:
		return []byte(`"` + Word + `"`), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes: a whole number of 0 or more, the
// word, or null. It refuses a number inside a string.
func (l *Limit) UnmarshalJSON(text []byte) error {
	switch s := string(text); {
	case s == "null":
		*l = Limit{}
		return nil
	case strings.HasPrefix(s, `"`):
		var word string
		if err := json.Unmarshal(text, &word); err != nil {
			return err
		}
		if word != Word {
			return fault.Invalidf("limit: parse", "the string %s: want a whole number without quotes, or %q", cut(word), Word)
		}
		*l = Unlimited
		return nil
	}
	return l.UnmarshalText(text)
}
