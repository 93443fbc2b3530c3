package forward

import (
	"context"
	"encoding/binary"
	"math"

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

// feed writes the requests into the arena.
func (m *Model) feed(ctx context.Context, p *plan, ids, types [][]int32) error {
	var in inputs
	if m.list.Ragged {
		in = ragged(p.tokens, ids, types)
	} else {
		in = padded(p.batch, p.tokens, ids, types)
	}
	for i, text := range in {
		if len(text) == 0 {
			continue // of the other kind of list
		}
		if err := m.write(ctx, p.inputs[i].offset, text); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) write(ctx context.Context, offset int64, text []byte) error {
	if mapped := m.arena.Mapped(); mapped != nil {
		copy(mapped[offset:], text)
		return nil
	}
	return m.exec.Write(ctx, m.arena, offset, text)
}

// collect reads the output and leaves padding out.
func (m *Model) collect(ctx context.Context, p *plan, ids [][]int32, a *Answer) error {
	row := 4 * m.list.Width
	rows, wanted := p.batch, len(ids)
	if m.list.PerToken {
		rows, wanted = rows*p.tokens, 0
		for _, tokens := range ids {
			wanted += len(tokens)
		}
	}
	a.Output = make([]float32, 0, wanted*m.list.Width)
	text := m.arena.Mapped()
	if text != nil {
		text = text[p.output.offset:]
	} else {
		text = make([]byte, rows*row)
		if err := m.exec.Read(ctx, m.arena, p.output.offset, text); err != nil {
			return err
		}
	}
	next := 0 // row of a ragged batch
	for item, tokens := range ids {
		first, n := item, 1
		switch {
		case m.list.Ragged:
			first, n = next, len(tokens)
			next += n
		case m.list.PerToken:
			first, n = item*p.tokens, len(tokens)
		}
		for at := first * row; at < (first+n)*row; at += 4 {
			a.Output = append(a.Output, math.Float32frombits(binary.LittleEndian.Uint32(text[at:])))
		}
	}
	return nil
}
