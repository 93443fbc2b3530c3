package encoder

import "testing"

// The results are those of Python's str.lower.
func TestLower(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "ABC é É": "abc é é", "Σ": "σ", "ΑΣ": "ας", "ΑΣΑ": "ασα", "ΑΣ Α": "ας α", "ΑΣ.Α": "ασ.α", "ΑΣ.": "ας.", "Α\u0301Σ": "α\u0301ς",
		" Σ ": " σ ", "ΑΣ\u0301": "ας\u0301", "1Σ": "1σ", "İI": "i\u0307i", "ẞ": "ß", "ΣΑΣ": "σας",
	} {
		if got := lower(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
