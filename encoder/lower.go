package encoder

import (
	"strings"
	"unicode"
)

// lower is a text in lower case as Python has it, which a folder may ask for: the Turkish
// capital i keeps its dot, and a sigma at the end of a word has a form of its own.
func lower(text string) string {
	if !strings.ContainsAny(text, "İΣ") {
		return strings.ToLower(text)
	}
	var b strings.Builder
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case r == 'İ':
			b.WriteString("i\u0307")
		case r == 'Σ' && cased(runes[:i], -1) && !cased(runes[i+1:], 1):
			b.WriteRune('ς')
		default:
			b.WriteRune(unicode.ToLower(r))
		}
	}
	return b.String()
}

// cased tells whether the nearest rune in this direction that is not ignored has a case.
func cased(runes []rune, step int) bool {
	at := 0
	if step < 0 {
		at = len(runes) - 1
	}
	for ; at >= 0 && at < len(runes); at += step {
		r := runes[at]
		if strings.ContainsRune("'.:^`·’‘․‧", r) || unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf, unicode.Lm, unicode.Sk) {
			continue
		}
		return unicode.IsUpper(r) || unicode.IsLower(r) || unicode.IsTitle(r)
	}
	return false
}
