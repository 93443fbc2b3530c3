package canon

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Schema names the tags of one group, for people to read.
type Schema map[Tag]Name

// Name is a field's name and, for a group, the names inside.
type Name struct {
	Text   string
	Inside Schema
}

// Field is one leaf of a printed key: Path as in attr.scales[0].mask.
type Field struct{ Path, Value string }

// Fields lists all leaves of an encoding in order. A tag without a name is
// printed as a number, so that keys of a later version can be looked at too.
func Fields(enc []byte, s Schema) ([]Field, error) {
	values, err := Walk(enc)
	if err != nil {
		return nil, err
	}
	var fields []Field
	flatten(values, s, "", func(path, value string) { fields = append(fields, Field{path, value}) })
	return fields, nil
}

func (s Schema) name(t Tag) Name {
	if n, ok := s[t]; ok {
		return n
	}
	return Name{Text: "#" + strconv.FormatUint(uint64(t), 10)}
}

func flatten(values []Value, s Schema, prefix string, leaf func(path, value string)) {
	count := map[Tag]int{}
	for _, v := range values {
		count[v.Tag]++
	}
	seen := map[Tag]int{}
	for _, v := range values {
		n := s.name(v.Tag)
		path := n.Text
		if path == "" && prefix != "" || count[v.Tag] > 1 {
			path += fmt.Sprintf("[%d]", seen[v.Tag])
			seen[v.Tag]++
		}
		if prefix != "" && !strings.HasPrefix(path, "[") {
			path = "." + path
		}
		path = prefix + path
		if v.Type != Group {
			leaf(path, v.print())
		} else if len(v.Values) == 0 {
			leaf(path, "[]")
		} else {
			flatten(v.Values, n.Inside, path, leaf)
		}
	}
}

func (v Value) print() string {
	switch v.Type {
	case Uint:
		return strconv.FormatUint(v.Uint, 10)
	case Int:
		return strconv.FormatInt(v.Int, 10)
	case Float:
		return strconv.FormatFloat(v.Float, 'g', -1, 64)
	case Ints:
		return strings.ReplaceAll(fmt.Sprint(v.Ints), " ", ",")
	}
	if plain(v.Bytes) {
		return string(v.Bytes)
	}
	return strconv.Quote(string(v.Bytes))
}

func plain(text []byte) bool {
	if len(text) == 0 || !utf8.Valid(text) {
		return false
	}
	for _, r := range string(text) {
		if !unicode.IsPrint(r) || strings.ContainsRune(" =\"[]", r) {
			return false
		}
	}
	return true
}
