package hashlist

import (
	"crypto/sha256"
	"encoding/binary"
)

// state is a SHA-256 state in the order of the instructions: F E B A, H G D C.
type state [8]uint32

var (
	initial = state{0x9b05688c, 0x510e527f, 0xbb67ae85, 0x6a09e667, 0x5be0cd19, 0x1f83d9ab, 0xa54ff53a, 0x3c6ef372}
	place   = [8]int{3, 2, 7, 6, 1, 0, 5, 4} // of A to H in a state
)

// extended says that the processor has the SHA extensions.
var extended = hasSHA()

func hasSHA() bool

// blocks takes n blocks of 64 bytes at p into a and as many at q into b; n is at
// least 1.
//
//go:noescape
func blocks(a, b *state, p, q *byte, n int)

// pair hashes two texts of the same length, a multiple of 64 bytes above 0.
func pair(p, q []byte) (first, second [sha256.Size]byte) {
	if !extended {
		return sha256.Sum256(p), sha256.Sum256(q)
	}
	a, b := initial, initial
	blocks(&a, &b, &p[0], &q[0], len(p)/64)
	last := [64]byte{0x80}
	binary.BigEndian.PutUint64(last[56:], uint64(len(p))*8)
	blocks(&a, &b, &last[0], &last[0], 1)
	for i, at := range place {
		binary.BigEndian.PutUint32(first[4*i:], a[at])
		binary.BigEndian.PutUint32(second[4*i:], b[at])
	}
	return first, second
}
