package wordpiece

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// Tokenizer turns texts into ids. It is safe for concurrent use.
type Tokenizer struct {
	normalizer    *normalizer
	raw, normal   addedTokens
	begin, inside dictionary // what a word begins with, and how it goes on
	unknown, pad  int32
	maxChars      int // of a word; a longer one is unknown
	single, pair  template
	scratch       sync.Pool // of *scratch
}

// scratch is what a call needs besides its result.
type scratch struct {
	text, normal []byte
	held         marks
}

// mostScratch is how many bytes are kept between calls.
const mostScratch = 1 << 18

// Pad is the id of the padding token, or -1 if the model has none.
func (t *Tokenizer) Pad() int32 { return t.pad }

// Unknown is the id of a word that the vocabulary cannot spell.
func (t *Tokenizer) Unknown() int32 { return t.unknown }

// Encode appends the ids of text to dst, with those that the model wants around it.
// They are at most limit; truncated says whether there were more. A limit that is too
// small for what stands around a text cuts that as well.
func (t *Tokenizer) Encode(dst []int32, text string, limit int) (ids []int32, truncated bool) {
	limit = max(limit, 0)
	room := limit - t.single.len()
	if room < 0 {
		ids, _ = t.single.cut(dst, limit)
		return ids, true
	}
	dst, n := t.text(append(dst, t.single.ids[0]...), text, room, false)
	return append(dst, t.single.ids[2]...), n > room
}

// EncodePair appends the ids of two texts to dst. Types has the type of each id that
// was appended. Where there are more than limit, the longer text loses tokens until
// both are equally long, and then both do.
func (t *Tokenizer) EncodePair(dst []int32, a, b string, limit int) (ids, types []int32, truncated bool) {
	limit = max(limit, 0)
	p, room := &t.pair, limit-t.pair.len()
	if room < 0 {
		ids, types = p.cut(dst, limit)
		return ids, types, true
	}
	base := len(dst)
	dst = append(dst, p.ids[0]...)
	startA := len(dst)
	dst, lenA := t.text(dst, a, room, true)
	startB := len(dst)
	dst, lenB := t.text(dst, b, room, true)
	keepA, keepB := longestFirst(lenA, lenB, room)
	dst = slices.Replace(dst[:startB+keepB], startA+keepA, startB, p.ids[1]...)
	dst = append(dst, p.ids[2]...)

	types = append(make([]int32, 0, len(dst)-base), p.types[0]...)
	types = append(types, slices.Repeat([]int32{p.typeA}, keepA)...)
	types = append(types, p.types[1]...)
	types = append(types, slices.Repeat([]int32{p.typeB}, keepB)...)
	return dst, append(types, p.types[2]...), lenA+lenB > room
}

// cut appends the first ids of a template without texts, and gives their types.
func (t *template) cut(dst []int32, most int) (ids, types []int32) {
	return append(dst, slices.Concat(t.ids[:]...)[:most]...), slices.Concat(t.types[:]...)[:most]
}

// longestFirst is how many tokens two texts of a and b tokens keep where there is
// room for so many.
func longestFirst(a, b, room int) (keepA, keepB int) {
	if a+b <= room {
		return a, b
	}
	short := min(a, b)
	long := max(short, room-short)
	if short+long > room {
		short, long = room/2, room-room/2
	}
	if a > b {
		return long, short
	}
	return short, long
}

// text appends the ids of a text, room of them at most, and counts all. Unless the
// caller needs the whole count, it stops after the word that is one too many.
func (t *Tokenizer) text(dst []int32, text string, room int, all bool) (ids []int32, count int) {
	s, _ := t.scratch.Get().(*scratch)
	if s == nil {
		s = new(scratch)
	}
	c := call{t: t, s: s, ids: dst, room: room, all: all}
	s.text = append(s.text[:0], text...)
	t.raw.cut(s.text, c.part, c.put)
	if cap(s.text)+cap(s.normal)+8*cap(s.held) <= mostScratch {
		t.scratch.Put(s)
	}
	return c.ids, c.count
}

// call is one text on its way. Its methods say whether to go on.
type call struct {
	t     *Tokenizer
	s     *scratch
	ids   []int32
	count int // of tokens; the first room of them are in ids
	room  int
	all   bool
}

func (c *call) put(id int32) bool {
	if c.count++; c.count <= c.room {
		c.ids = append(c.ids, id)
	}
	return c.all || c.count <= c.room
}

// part takes what lies between two tokens that were found in the text.
func (c *call) part(text []byte) bool {
	c.s.normal = c.t.normalizer.append(c.s.normal[:0], text, &c.s.held)
	return c.t.normal.cut(c.s.normal, c.words, c.put)
}

// words takes what lies between two tokens that were found in the normal form.
func (c *call) words(text []byte) bool {
	table, begin, chars := c.t.normalizer.table, 0, 0
	for i := 0; i < len(text); {
		r, size := rune(text[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(text[i:])
		}
		flags := table.of(r).flags & (space | punctuation)
		if flags == 0 {
			i, chars = i+size, chars+1
			continue
		}
		if begin < i && !c.word(text[begin:i], chars) {
			return false
		}
		if flags&space == 0 && !c.word(text[i:i+size], 1) {
			return false
		}
		i += size
		begin, chars = i, 0
	}
	return begin == len(text) || c.word(text[begin:], chars)
}

// word takes one word: always the longest token that fits, and unknown if none does
// anywhere in it.
func (c *call) word(word []byte, chars int) bool {
	if chars > c.t.maxChars {
		return c.put(c.t.unknown)
	}
	ids, count, tokens := len(c.ids), c.count, &c.t.begin
	for len(word) > 0 {
		id, n := tokens.longest(word)
		if n == 0 {
			c.ids, c.count = c.ids[:ids], count
			return c.put(c.t.unknown)
		}
		c.put(id)
		word, tokens = word[n:], &c.t.inside
	}
	return c.all || c.count <= c.room
}
