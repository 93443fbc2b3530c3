package script

import (
	"fmt"
	"strconv"
	"strings"
)

// maxItems bounds a list, so that a slip of the pen does not fill the memory.
const maxItems = 1 << 17

// Items reads a list of words and ranges separated by commas: 0..9, k0..k9,
// a,b. A range that runs backwards is empty; the empty list has no item.
func Items(list string) ([]string, error) {
	var items []string
	words, err := Split(strings.TrimSpace(list))
	for _, word := range words {
		if err == nil {
			items, err = appendRange(items, strings.TrimSpace(word))
		}
	}
	return items, err
}

// Split cuts a list at its commas; those inside square brackets or string
// literals do not separate. The empty list has no item.
func Split(list string) (items []string, err error) {
	depth, start := 0, 0
	for i := 0; i < len(list); i++ {
		switch list[i] {
		case '[':
			depth++
		case ']':
			depth--
		case '"':
			end, err := literal(list, i)
			if err != nil {
				return nil, err
			}
			i = end - 1
		case ',':
			if depth <= 0 {
				items = append(items, list[start:i])
				start = i + 1
			}
		}
	}
	if list != "" {
		items = append(items, list[start:])
	}
	return items, nil
}

func appendRange(items []string, item string) ([]string, error) {
	from, to, found := strings.Cut(item, "..")
	if !found || from == "" || to == "" {
		return append(items, item), nil
	}
	prefix, lo, okLo := numbered(from)
	prefixTo, hi, okHi := numbered(to)
	if !okLo || !okHi || prefix != prefixTo {
		return append(items, item), nil
	}
	if hi-lo >= maxItems || int64(len(items))+hi-lo >= maxItems {
		return nil, fmt.Errorf("list %s has more than %d items", item, maxItems)
	}
	for n := lo; n <= hi; n++ {
		items = append(items, prefix+strconv.FormatInt(n, 10))
	}
	return items, nil
}

// numbered splits k12 into k and 12. A minus sign counts as one only where
// nothing stands before it.
func numbered(s string) (prefix string, n int64, ok bool) {
	i := len(s)
	for i > 0 && s[i-1] >= '0' && s[i-1] <= '9' {
		i--
	}
	if i == 1 && s[0] == '-' {
		i = 0
	}
	n, err := strconv.ParseInt(s[i:], 10, 48)
	return s[:i], n, err == nil
}
