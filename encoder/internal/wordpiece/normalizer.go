package wordpiece

import "unicode/utf8"

// normalizer has the options of BertNormalizer.
type normalizer struct {
	clean, ideographs, strip, lower bool

	table *unicodeTable
	ascii [utf8.RuneSelf]byte // what a byte becomes; removed where it is removed
}

const removed = 0xff

func newNormalizer(clean, ideographs, strip, lower bool) *normalizer {
	n := &normalizer{clean: clean, ideographs: ideographs, strip: strip, lower: lower, table: unicodeTables()}
	for c := range rune(utf8.RuneSelf) {
		p, b := n.table.of(c), byte(c)
		switch {
		case clean && p.flags&dropped != 0:
			b = removed
		case clean && p.flags&space != 0:
			b = ' '
		case lower:
			b = byte(c + p.shift)
		}
		n.ascii[c] = b
	}
	return n
}

// marks are the combining marks since the last other character, in the order in
// which they came.
type marks []mark

type mark struct {
	r     rune
	class uint8
}

// append adds the normal form of text to dst. It leaves held empty.
func (n *normalizer) append(dst, text []byte, held *marks) []byte {
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			i++
			if b := n.ascii[c]; b != removed {
				if len(*held) > 0 {
					dst = n.settle(dst, held)
				}
				dst = append(dst, b)
			}
			continue
		}
		r, size := utf8.DecodeRune(text[i:])
		i += size
		p := n.table.of(r)
		if n.clean {
			if p.flags&dropped != 0 {
				continue
			}
			if p.flags&space != 0 {
				r, p = ' ', n.table.of(' ')
			}
		}
		around := n.ideographs && p.flags&ideograph != 0
		if around {
			dst = append(n.settle(dst, held), ' ')
		}
		if n.strip {
			dst = n.decompose(dst, r, p, held)
		} else {
			dst = n.put(dst, r, p)
		}
		if around {
			dst = append(n.settle(dst, held), ' ')
		}
	}
	return n.settle(dst, held)
}

// decompose adds r in NFD and without accents. NFD sorts the marks between two other
// characters by their classes.
func (n *normalizer) decompose(dst []byte, r rune, p *property, held *marks) []byte {
	switch {
	case p.flags&starter != 0:
		return n.settle(dst, held)
	case p.flags&accent != 0:
		return dst
	case r >= hangulFirst && r <= hangulLast:
		s := r - hangulFirst
		dst = utf8.AppendRune(n.settle(dst, held), leadFirst+s/(vowels*tails))
		dst = utf8.AppendRune(dst, vowelFirst+s/tails%vowels)
		if s%tails != 0 {
			dst = utf8.AppendRune(dst, tailBefore+s%tails)
		}
		return dst
	case p.class != 0:
		*held = append(*held, mark{r, p.class})
		return dst
	case p.strip == "":
		return n.put(n.settle(dst, held), r, p)
	}
	for _, r := range p.strip {
		if p := n.table.of(r); p.class != 0 {
			*held = append(*held, mark{r, p.class})
		} else {
			dst = n.put(n.settle(dst, held), r, p)
		}
	}
	return dst
}

// settle adds the marks that are held, by class.
func (n *normalizer) settle(dst []byte, held *marks) []byte {
	if len(*held) == 0 {
		return dst
	}
	for _, class := range n.table.classes {
		for _, m := range *held {
			if m.class == class {
				dst = n.put(dst, m.r, n.table.of(m.r))
			}
		}
	}
	*held = (*held)[:0]
	return dst
}

func (n *normalizer) put(dst []byte, r rune, p *property) []byte {
	switch {
	case !n.lower:
		return utf8.AppendRune(dst, r)
	case p.lower != "":
		return append(dst, p.lower...)
	}
	return utf8.AppendRune(dst, r+p.shift)
}
