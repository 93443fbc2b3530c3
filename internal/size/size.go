// Package size reads sizes as people write them: 512KiB, 5G, or a number alone, in the
// unit of its setting. Pure.
package size

import (
	"math"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// Units that a number alone may have.
const (
	Byte int64 = 1
	MiB  int64 = 1 << 20
)

// Grammar is what a size may be, for messages.
const Grammar = "a whole number, or one with its unit such as 512KiB or 5GiB"

// units are the endings of a size, in the order in which they are tried. K, M, G and T
// alone are powers of 1024, as with dd and GNU's tools.
var units = []struct {
	name  string
	bytes int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1},
}

// Parse reads a size, or the word of limit.Unlimited, in bytes. A number without a unit
// counts alone. What is neither, and a size above 2^63-1 bytes, is a fault.ErrInvalid.
func Parse(text string, alone int64) (limit.Limit, error) {
	if text == limit.Word {
		return limit.Unlimited, nil
	}
	number, unit := text, alone
	for _, u := range units {
		if n, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = n, u.bytes
			break
		}
	}
	if number == "" || strings.Trim(number, "0123456789") != "" {
		return limit.Limit{}, fault.Invalidf("size: parse", "%.40q: want %s, or %s", text, Grammar, limit.Word)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n > math.MaxInt64/unit { // it has digits only, so it is too large
		return limit.Limit{}, fault.Invalidf("size: parse", "%.40q is above %d bytes: want a smaller size, or %s", text, int64(math.MaxInt64), limit.Word)
	}
	return limit.Of(n * unit), nil
}

// Format writes a size so that Parse reads it: as a number alone if it is one of whole
// units, else in bytes.
func Format(l limit.Limit, alone int64) string {
	n, counted := l.Value()
	switch {
	case !counted:
		return l.String()
	case n%alone == 0:
		return limit.Of(n / alone).String()
	}
	return l.String() + "B"
}
