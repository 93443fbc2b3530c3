package hashlist

import (
	"crypto/sha256"
	"hash"
	"runtime"
	"sync"
	"sync/atomic"
)

// Piece is how many bytes each digest of a list covers; the last may cover less.
const Piece = 16 << 10

// Write writes the list of a text, given in parts, to top. How a text is cut
// into parts does not change its list; an empty text has an empty one.
func Write(top hash.Hash, parts ...[]byte) {
	open := sha256.New() // the piece that is not whole yet
	held := 0            // bytes in it
	end := func() {
		top.Write(open.Sum(nil))
		open.Reset()
		held = 0
	}
	for _, part := range parts {
		for len(part) > 0 {
			if held == 0 && len(part) >= 2*Piece {
				whole := len(part) - len(part)%(2*Piece)
				top.Write(pairs(part[:whole]))
				part = part[whole:]
				continue
			}
			n := min(len(part), Piece-held)
			open.Write(part[:n])
			part = part[n:]
			if held += n; held == Piece {
				end()
			}
		}
	}
	if held > 0 {
		end()
	}
}

// pairs is the list of a text of an even number of pieces. Of a long one, several
// cores take a turn of pieces each until none is left.
func pairs(text []byte) []byte {
	const (
		turn  = 32 * Piece
		cores = 4 // more would wait for memory
	)
	list := make([]byte, len(text)/Piece*sha256.Size)
	var taken atomic.Int64
	work := func() {
		for {
			end := int(taken.Add(turn))
			if end-turn >= len(text) {
				return
			}
			for at := end - turn; at < min(end, len(text)); at += 2 * Piece {
				first, second := pair(text[at:at+Piece], text[at+Piece:at+2*Piece])
				copy(list[at/Piece*sha256.Size:], first[:])
				copy(list[(at/Piece+1)*sha256.Size:], second[:])
			}
		}
	}
	var wg sync.WaitGroup
	for range min(cores, runtime.GOMAXPROCS(0), len(text)/turn) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return list
}
