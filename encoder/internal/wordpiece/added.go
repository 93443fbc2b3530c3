package wordpiece

import "unicode/utf8"

// addedToken is found in a text before the text is cut into words.
type addedToken struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"` // it is looked for in the normal form
	Special    bool   `json:"special"`
}

// addedTokens are those that are looked for in the text, or those in its normal form.
type addedTokens struct {
	dictionary
	tokens map[int32]addedToken
	table  *unicodeTable
}

func (a *addedTokens) add(pattern string, id int32, token addedToken) {
	if a.tokens == nil {
		a.tokens = make(map[int32]addedToken)
	}
	a.dictionary.add(pattern, id)
	a.tokens[id] = token
}

// cut calls found for each token in text and rest for what lies between, in order,
// until one of them returns false. At each place the longest token counts, and a
// token that its single_word forbids hides what it overlaps.
func (a *addedTokens) cut(text []byte, rest func([]byte) bool, found func(id int32) bool) bool {
	if len(a.ids) == 0 {
		return rest(text)
	}
	begin, spacesEnd := 0, 0 // what is not yet given away; the last run of spaces
	for at := 0; at < len(text); {
		if len(a.lengths[text[at]]) == 0 {
			at++
			continue
		}
		id, n := a.longest(text[at:])
		if n == 0 {
			at++
			continue
		}
		first, last := at, at+n
		at = last
		token := a.tokens[id]
		if token.SingleWord && (a.wordEnds(text[:first]) || a.wordBegins(text[last:])) {
			continue
		}
		if token.LStrip {
			for first > begin {
				r, size := utf8.DecodeLastRune(text[begin:first])
				if a.table.of(r).flags&space == 0 {
					break
				}
				first -= size
			}
			first = max(first, begin)
		}
		if token.RStrip {
			for spacesEnd = max(spacesEnd, last); spacesEnd < len(text); {
				r, size := utf8.DecodeRune(text[spacesEnd:])
				if a.table.of(r).flags&space == 0 {
					break
				}
				spacesEnd += size
			}
			last = spacesEnd
		}
		if begin < first && !rest(text[begin:first]) {
			return false
		}
		if first < last && !found(id) { // else it is of spaces that the token before has stripped
			return false
		}
		begin = last
	}
	return begin >= len(text) || rest(text[begin:])
}

func (a *addedTokens) wordEnds(text []byte) bool {
	r, _ := utf8.DecodeLastRune(text)
	return len(text) > 0 && a.table.of(r).flags&wordly != 0
}

func (a *addedTokens) wordBegins(text []byte) bool {
	r, _ := utf8.DecodeRune(text)
	return len(text) > 0 && a.table.of(r).flags&wordly != 0
}
