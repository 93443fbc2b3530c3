package advice

// notes has the last notes, in blocks: it grows and loses its oldest without a copy of what
// it has, however many they are.
type notes struct {
	blocks     []*block // the oldest first
	start, end int      // notes lie from there, in the first block, up to there
	spare      *block   // that had the oldest
}

const blockLen = 512

type block [blockLen]note

func (n *notes) len() int { return n.end - n.start }

// at is a note; 0 is the newest.
func (n *notes) at(i int) note {
	place := n.end - 1 - i
	return n.blocks[place/blockLen][place%blockLen]
}

// put adds a note, in place of the oldest where there are most already.
func (n *notes) put(x note, most int) {
	if most == 0 {
		return
	}
	if n.len() == most {
		if n.start++; n.start == blockLen {
			n.spare, n.blocks[0] = n.blocks[0], nil
			n.blocks = n.blocks[1:]
			n.start, n.end = 0, n.end-blockLen
		}
	}
	if n.end == len(n.blocks)*blockLen {
		if n.spare == nil {
			n.spare = new(block)
		}
		n.blocks, n.spare = append(n.blocks, n.spare), nil
	}
	n.blocks[n.end/blockLen][n.end%blockLen] = x
	n.end++
}
