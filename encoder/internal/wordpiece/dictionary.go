package wordpiece

import "slices"

// dictionary finds the longest token that a text begins with. The empty token is
// there and never found.
type dictionary struct {
	ids     map[string]int32
	lengths [256][]int // of the tokens, by their first byte, in order
}

// mostExpected bounds the room that is made before tokens are seen.
const mostExpected = 1 << 17

func newDictionary(expected int) dictionary {
	return dictionary{ids: make(map[string]int32, min(expected, mostExpected))}
}

func (d *dictionary) add(token string, id int32) {
	if d.ids == nil {
		d.ids = make(map[string]int32)
	}
	d.ids[token] = id
	if token == "" {
		return
	}
	lengths := &d.lengths[token[0]]
	if i, found := slices.BinarySearch(*lengths, len(token)); !found {
		*lengths = slices.Insert(*lengths, i, len(token))
	}
}

// longest gives the id and the length of the token; the length is 0 if there is none.
func (d *dictionary) longest(text []byte) (id int32, length int) {
	lengths := d.lengths[text[0]]
	i, _ := slices.BinarySearch(lengths, len(text)+1)
	for i--; i >= 0; i-- {
		if id, ok := d.ids[string(text[:lengths[i]])]; ok {
			return id, lengths[i]
		}
	}
	return 0, 0
}
