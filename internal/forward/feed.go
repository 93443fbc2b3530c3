package forward

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// inputs are the numbers of a batch, as a plan's inputs have them.
type inputs [-oplist.Starts][]byte

func (in *inputs) put(s oplist.Source, n int) {
	in[-1-s] = binary.LittleEndian.AppendUint32(in[-1-s], uint32(n))
}

// typeOf is the type of a token of a request; nil types are 0.
func typeOf(types [][]int32, item, at int) int {
	if item < len(types) && at < len(types[item]) {
		return int(types[item][at])
	}
	return 0
}

// padded are ids and types padded with 0, lengths. Rows that pad the batch are requests
// of the one token 0.
func padded(batch, tokens int, ids, types [][]int32) (in inputs) {
	for item := range batch {
		row := []int32{0}
		if item < len(ids) {
			row = ids[item]
		}
		in.put(oplist.Lengths, len(row))
		for at := range tokens {
			id := 0
			if at < len(row) {
				id = int(row[at])
			}
			in.put(oplist.Tokens, id)
			in.put(oplist.TokenTypes, typeOf(types, item, at))
		}
	}
	return in
}

// ragged are ids one behind another with their positions, and where each row begins. What
// is behind them are tokens that no attention reads.
func ragged(tokens int, ids, types [][]int32) (in inputs) {
	rows := 0
	add := func(id, kind, at int) {
		in.put(oplist.Tokens, id)
		in.put(oplist.TokenTypes, kind)
		in.put(oplist.Positions, at)
		rows++
	}
	for item, row := range ids {
		in.put(oplist.Starts, rows)
		for at, id := range row {
			add(int(id), typeOf(types, item, at), at)
		}
	}
	in.put(oplist.Starts, rows)
	for rows < tokens {
		add(0, 0, 0)
	}
	return in
}

// feed adds the copies of the requests into the arena.
func (m *Model) feed(sequence []gpuexec.Launch, p *plan, ids, types [][]int32) []gpuexec.Launch {
	var in inputs
	if m.list.Ragged {
		in = ragged(p.tokens, ids, types)
	} else {
		in = padded(p.batch, p.tokens, ids, types)
	}
	for i, text := range in {
		if len(text) > 0 { // else it is of the other kind of list
			sequence = append(sequence, gpuexec.CopyTo(m.arena, p.inputs[i].offset, text))
		}
	}
	return sequence
}

// collect adds the copies of the output, without padding, into the answer: the arena's memory
// itself is gone where somebody closes the executor meanwhile.
func (m *Model) collect(sequence []gpuexec.Launch, p *plan, ids [][]int32, a *Answer) []gpuexec.Launch {
	width, rows := m.list.Width, len(ids)
	if m.list.PerToken {
		rows = 0
		for _, tokens := range ids {
			rows += len(tokens)
		}
	}
	a.Output = make([]float32, rows*width)
	from := func(row int, into []float32) {
		sequence = append(sequence, gpuexec.CopyFrom(m.arena, p.output.offset+int64(4*row*width), gpuexec.BytesOf(into)))
	}
	if m.list.Ragged || !m.list.PerToken {
		from(0, a.Output) // padding is behind it
		return sequence
	}
	rest := a.Output
	for item, tokens := range ids {
		n := len(tokens) * width
		from(item*p.tokens, rest[:n])
		rest = rest[n:]
	}
	return sequence
}

// native has numbers that came from a device be this machine's.
func native(numbers []float32) {
	if littleEndian {
		return
	}
	for i, v := range numbers {
		numbers[i] = math.Float32frombits(bits.ReverseBytes32(math.Float32bits(v)))
	}
}
