// Package hashlist computes the digest list of large texts: the SHA-256 of each
// piece of them (R. C. Merkle, Protocols for public key cryptosystems, IEEE S&P
// 1980, cut to one level). A hash of the list is a hash of the text.
//
// One SHA-256 waits for itself: each round needs the one before. Pieces do not
// wait for each other, so several cores share those of a large text.
//
// All functions are pure and safe for concurrent use.
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
			if held == 0 && len(part) >= Piece {
				whole := len(part) - len(part)%Piece
				top.Write(pieces(part[:whole]))
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

// pieces is the list of a text of whole pieces. Of a long one, several cores take
// a turn of pieces each until none is left: a short turn, since the last one is waited for.
func pieces(text []byte) []byte {
	const (
		turn  = 2 * Piece
		share = 32 * Piece // of a core, at least
		cores = 4          // more would wait for memory
	)
	list := make([]byte, len(text)/Piece*sha256.Size)
	var taken atomic.Int64
	work := func() {
		for {
			end := int(taken.Add(turn))
			if end-turn >= len(text) {
				return
			}
			for at := end - turn; at < min(end, len(text)); at += Piece {
				sum := sha256.Sum256(text[at : at+Piece])
				copy(list[at/Piece*sha256.Size:], sum[:])
			}
		}
	}
	var wg sync.WaitGroup
	for range min(cores, runtime.GOMAXPROCS(0), len(text)/share) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
	return list
}
