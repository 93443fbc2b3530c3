package limit

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Word is how no bound is written, in this case only.
const Word = "unlimited"

// Limit is a capacity. The zero value means "not given": a Config that holds
// one picks its default with Or.
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

// Unlimited is no bound at all.
var Unlimited = Limit{form: unbounded}

// Of is a bound of n. A negative n is kept for Validate to refuse, so that Of
// can stand inside a Config literal.
func Of(n int64) Limit { return Limit{form: counted, count: n} }

// Parse reads a plain decimal (digits only: no sign, blank, fraction or unit)
// or the word "unlimited". Anything else, and a number above 2^63-1, is a
// fault.ErrInvalid that says which.
func Parse(s string) (Limit, error) {
	if s == Word {
		return Unlimited, nil
	}
	if why := notDecimal(s); why != "" {
		return Limit{}, fault.Invalidf("limit: parse", "%s: want a whole number such as 64, or %s", why, Word)
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil { // digits only, so it can but be too large
		return Limit{}, fault.Invalidf("limit: parse", "%s is above 2^63-1: want a smaller number, or %s", cut(s), Word)
	}
	return Of(n), nil
}

// notDecimal says what keeps s from being digits only; empty where nothing does.
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

// cut quotes what somebody wrote, at a length that a log line bears.
func cut(s string) string {
	const most = 40
	if len(s) > most {
		return strconv.Quote(s[:most]) + "..."
	}
	return strconv.Quote(s)
}

// Value is the count and true, or 0 and false where there is none: unlimited
// or not given.
func (l Limit) Value() (int64, bool) { return l.count, l.form == counted }

// Given reports whether somebody set l.
func (l Limit) Given() bool { return l.form != absent }

// IsUnlimited reports whether l is the absence of a bound on purpose.
func (l Limit) IsUnlimited() bool { return l.form == unbounded }

// Or is l where it is given, else otherwise.
func (l Limit) Or(otherwise Limit) Limit {
	if l.Given() {
		return l
	}
	return otherwise
}

// Allows reports whether n is within l. A limit that is not given allows
// everything; settle it with Or first.
func (l Limit) Allows(n int64) bool { return l.form != counted || n <= l.count }

// MiB is l in bytes where l counts MiB; what no number of bytes can say is
// unlimited.
func (l Limit) MiB() Limit {
	if l.form != counted {
		return l
	}
	if l.count > math.MaxInt64>>20 {
		return Unlimited
	}
	return Of(l.count << 20)
}

// Validate is a fault.ErrInvalid for a negative count, else nil.
func (l Limit) Validate() error {
	if l.count < 0 {
		return fault.Invalidf("limit: validate", "capacity %d is negative: want 0 or more, or %s", l.count, Word)
	}
	return nil
}

// String is the decimal count, "unlimited", or empty where not given.
func (l Limit) String() string {
	switch l.form {
	case counted:
		return strconv.FormatInt(l.count, 10)
	case unbounded:
		return Word
	}
	return ""
}

// MarshalText is String, which makes a Limit usable with flag.TextVar.
func (l Limit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText is Parse; l is left as it is on an error.
func (l *Limit) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*l = parsed
	return nil
}

// MarshalJSON is a number, "unlimited", or null where not given.
func (l Limit) MarshalJSON() ([]byte, error) {
	switch l.form {
	case counted:
		return strconv.AppendInt(nil, l.count, 10), nil
	case unbounded:
		return []byte(`"` + Word + `"`), nil
	}
	return []byte("null"), nil
}

// UnmarshalJSON reads what MarshalJSON writes: a whole number of 0 or more,
// the word, or null. A number inside a string is refused.
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
