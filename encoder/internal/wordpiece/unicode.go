package wordpiece

import (
	_ "embed"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed unicode.txt
var unicodeText string

// What a code point is to the reference.
const (
	dropped     = 1 << iota // clean_text removes it
	space                   // ends a word; clean_text makes it ' '
	ideograph               // handle_chinese_chars puts spaces around it
	punctuation             // is a word of its own
	wordly                  // \w: a single_word token does not touch it
	accent                  // strip_accents removes it
	starter                 // is removed, and no mark moves across it
)

var flagNames = map[string]uint8{"clean": dropped, "space": space, "ideograph": ideograph, "punctuation": punctuation, "word": wordly, "accent": accent, "starter": starter}

// property is what many code points share.
type property struct {
	flags uint8
	class uint8  // combining class of a mark that strip_accents keeps, else 0
	strip string // NFD without accents; empty where that is the code point, or nothing
	shift rune   // to the lower case
	lower string // U+0130 has two code points in lower case; else empty
}

// unicodeTable finds the property of a code point. Equal pages are one page.
type unicodeTable struct {
	properties []property
	index      [(maxRune + 1) >> pageBits]uint16
	pages      [][1 << pageBits]uint16
	classes    []uint8 // of all properties, in order, without 0
}

const (
	maxRune  = 0x10ffff
	pageBits = 7
)

// Hangul syllables decompose by rule.
const (
	hangulFirst, hangulLast = 0xac00, 0xd7a3
	leadFirst               = 0x1100
	vowelFirst, vowels      = 0x1161, 21
	tailBefore, tails       = 0x11a7, 28
)

func (t *unicodeTable) of(r rune) *property {
	return &t.properties[t.pages[t.index[r>>pageBits]][r&(1<<pageBits-1)]]
}

var unicodeTables = sync.OnceValue(func() *unicodeTable {
	points := make([]uint16, maxRune+1)
	t := &unicodeTable{properties: make([]property, 1)}
	known := map[property]uint16{{}: 0}
	change := func(first, last rune, by func(*property)) {
		was, n, ok := uint16(0), uint16(0), false
		for r := first; r <= last; r++ {
			if r == first || points[r] != was {
				was = points[r]
				p := t.properties[was]
				by(&p)
				if n, ok = known[p]; !ok {
					n = uint16(len(t.properties))
					known[p] = n
					t.properties = append(t.properties, p)
				}
			}
			points[r] = n
		}
	}
	for line := range strings.Lines(unicodeText) {
		fields := strings.Fields(line)
		if fields[0] == "#" {
			continue
		}
		runes := make([]rune, len(fields)-1)
		for i, f := range fields[1:] {
			r, _ := strconv.ParseUint(f, 16, 32) // a test reads the whole table
			runes[i] = rune(r)
		}
		switch name, class, _ := strings.Cut(fields[0], "."); name {
		case "strip":
			change(runes[0], runes[0], func(p *property) { p.strip = string(runes[1:]) })
		case "lower":
			if len(runes) > 2 {
				change(runes[0], runes[0], func(p *property) { p.lower = string(runes[1:]) })
			} else {
				change(runes[0], runes[0], func(p *property) { p.shift = runes[1] - runes[0] })
			}
		default:
			k, _ := strconv.ParseUint(class, 10, 8)
			change(runes[0], runes[1], func(p *property) { p.flags, p.class = p.flags|flagNames[name], max(p.class, uint8(k)) })
			if k != 0 && !slices.Contains(t.classes, uint8(k)) {
				t.classes = append(t.classes, uint8(k))
			}
		}
	}
	slices.Sort(t.classes)
	seen := make(map[[1 << pageBits]uint16]uint16)
	for i := range t.index {
		page := [1 << pageBits]uint16(points[i<<pageBits:])
		n, ok := seen[page]
		if !ok {
			n = uint16(len(t.pages))
			seen[page] = n
			t.pages = append(t.pages, page)
		}
		t.index[i] = n
	}
	return t
})
