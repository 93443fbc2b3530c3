package wordpiece

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// template is what stands before the first text, between two, and after the last.
type template struct {
	ids, types   [3][]int32
	typeA, typeB int32
}

func (t *template) len() int { return len(t.ids[0]) + len(t.ids[1]) + len(t.ids[2]) }

func (t *template) add(place int, kind number, ids ...number) {
	for _, id := range ids {
		t.ids[place], t.types[place] = append(t.ids[place], int32(id)), append(t.types[place], int32(kind))
	}
}

// bert are the templates of BERT: [CLS] A [SEP], [CLS] A [SEP] B [SEP].
func bert(begin, end number) (single, pair template) {
	for _, t := range []*template{&single, &pair} {
		t.add(0, 0, begin)
	}
	single.add(2, 0, end)
	pair.add(1, 0, end)
	pair.add(2, 1, end)
	pair.typeB = 1
	return single, pair
}

func (f *tokenizerFile) readPostProcessor(raw json.RawMessage) error {
	const path = "post_processor"
	kind, err := f.typed(path, raw, "TemplateProcessing", "BertProcessing")
	if err != nil {
		return err
	}
	if kind == "BertProcessing" {
		o, err := f.object(path, raw, "type", "sep", "cls")
		if err != nil {
			return err
		}
		var begin, end namedID
		if err := f.value(path+".cls", o["cls"], &begin); err != nil {
			return err
		}
		if err := f.value(path+".sep", o["sep"], &end); err != nil {
			return err
		}
		f.single, f.pair = bert(number(begin), number(end))
		return nil
	}
	o, err := f.object(path, raw, "type", "single", "pair", "special_tokens")
	if err != nil {
		return err
	}
	var specials map[string]struct {
		IDs []number `json:"ids"`
	}
	if err := f.value(path+".special_tokens", o["special_tokens"], &specials); err != nil {
		return err
	}
	read := func(name, order string, t *template) error {
		var pieces []struct {
			Sequence, SpecialToken *struct {
				ID   string `json:"id"`
				Type number `json:"type_id"`
			}
		}
		path := path + "." + name
		if err := f.value(path, o[name], &pieces); err != nil {
			return err
		}
		seen := ""
		for _, p := range pieces {
			switch {
			case p.SpecialToken != nil:
				special, ok := specials[p.SpecialToken.ID]
				if !ok {
					return invalid(f.name, path, "names %s, which special_tokens has not", fault.Printable(p.SpecialToken.ID))
				}
				place := min(len(seen), 2)
				if seen == order {
					place = 2
				}
				t.add(place, p.SpecialToken.Type, special.IDs...)
			case p.Sequence != nil:
				seen += p.Sequence.ID
				if p.Sequence.ID == "A" {
					t.typeA = int32(p.Sequence.Type)
				} else {
					t.typeB = int32(p.Sequence.Type)
				}
			default:
				return invalid(f.name, path, "has a piece that is neither Sequence nor SpecialToken")
			}
		}
		if seen != order {
			return unsupported(f.name, path, "has the texts %.64q, want %q", seen, order)
		}
		return nil
	}
	if err := read("single", "A", &f.single); err != nil {
		return err
	}
	if f.single.typeA != 0 || slices.Max(append([]int32{0}, slices.Concat(f.single.types[:]...)...)) != 0 {
		return unsupported(f.name, path+".single", "has a type_id that is not 0")
	}
	return read("pair", "AB", &f.pair)
}

// namedID is the id of a list of a token and its id.
type namedID number

func (n *namedID) UnmarshalJSON(text []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(text, &pair); err != nil || len(pair) != 2 {
		return errors.Join(err, errors.New("not a token with its id"))
	}
	return json.Unmarshal(pair[1], (*number)(n))
}
