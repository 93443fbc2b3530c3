package forward

import (
	"slices"

	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/shapegroups"
)

// pack takes the list of ragged batches, if there is one and the device has what is in it.
func (m *Model) pack() {
	packed := m.list.Packed()
	if packed == nil {
		return
	}
	bound, err := packed.At(1, 1)
	if err != nil {
		return
	}
	for _, b := range bound {
		op, err := lower(b)
		if err != nil {
			return
		}
		if _, err := m.lib.Source(op); err != nil {
			return
		}
	}
	m.list = packed
}

// intern gives each operation its name. Where packing is asked for, requests come in any
// number of tokens: equal operations share one, also on a device that does not pack. Layers
// then do not make a new shape dearer.
func (m *Model) intern(shared bool) {
	m.alike = firsts(m.list)
	for i, first := range m.alike {
		op := &m.list.Ops[i]
		name := op.Name
		if shared {
			op = &m.list.Ops[first]
			name = op.Name + "." + string(op.Kind) // positions are two of one name
		}
		m.names = append(m.names, m.session.Intern(name))
	}
}

// firsts gives for each operation the first that is the same primitive at any shape.
func firsts(list *oplist.Model) (all []int) {
	type primitive struct {
		identity   string
		transposed bool // which dims alone do not tell
	}
	at := make(map[primitive]int)
	for i := range list.Ops {
		same := primitive{list.Ops[i].Identity(), list.Ops[i].TransposeB}
		if _, seen := at[same]; !seen {
			at[same] = i
		}
		all = append(all, at[same])
	}
	return all
}

// Packed reports whether Run packs: the requests of a batch then lie one behind another,
// and its shape is their number of tokens.
func (m *Model) Packed() bool { return m.list.Ragged }

// PackedShape is Shape for a model that packs: the number of tokens, or one token for all that
// have the same programs, so that there is one group of them. Safe for concurrent use.
func (m *Model) PackedShape(tokens int) (shapegroups.Shape, error) {
	if tokens <= m.shapeless {
		tokens = 1
	}
	return shapegroups.Of([]int64{int64(tokens)})
}

// sameProgramsUpTo gives the most tokens of a batch, a power of four, up to which every batch has
// the same programs: a new shape then asks for none (SPEC E7). It is 0 where a program is for its shape, or
// batches are padded. Libraries tell by their sources, of which some are compared.
func (m *Model) sameProgramsUpTo() (most int) {
	const batches = 64 << 10 // of more tokens, ask for their programs
	if !m.list.Ragged {
		return 0
	}
	var same []string // keys
	for tokens := 1; tokens <= batches; tokens *= 4 {
		keys, ok := m.programs(tokens)
		if !ok || tokens > 1 && !slices.Equal(keys, same) {
			break
		}
		same, most = keys, tokens
	}
	if most == 1 {
		return 0
	}
	return most
}

// programs gives the keys of the programs of a batch, each operation's once; false where the
// library has not all.
func (m *Model) programs(tokens int) (keys []string, ok bool) {
	bound, err := m.list.AtAlike(1, tokens, m.alike)
	if err != nil {
		return nil, false
	}
	for i, b := range bound {
		if m.alike[i] != i {
			continue
		}
		op, err := m.lower(b)
		if err != nil {
			return nil, false
		}
		source, err := m.lib.Source(op)
		if err != nil {
			return nil, false
		}
		keys = append(keys, source.Key)
	}
	return keys, true
}

// split says how many tokens and requests the attentions of a ragged batch are for.
func (p *plan) split(lib ops.Library, tokens, requests int) {
	for i := range p.steps {
		s := &p.steps[i]
		if s.op.Kind != ops.Attention {
			continue
		}
		if first := &p.steps[s.alike]; first != s {
			s.grid, s.values = first.grid, first.values
			continue
		}
		op := s.op
		op.Dims[0], op.Dims[3] = int64(tokens), int64(requests)
		s.grid, s.values = lib.Launch(op)
	}
}
