// Package binread takes a byte string apart without believing any length in it:
// what parsers of untrusted files share.
package binread

import "encoding/binary"

// Reader takes bytes from the front of Rest and notes when there are too few.
// From then on every take gives nothing. It belongs to one goroutine.
type Reader struct {
	Rest  []byte
	Short bool
}

// Take gives the next n bytes, a part of what is read, or nil.
func (r *Reader) Take(n uint64) []byte {
	if r.Short || n > uint64(len(r.Rest)) {
		r.Short = true
		return nil
	}
	out := r.Rest[:n:n]
	r.Rest = r.Rest[n:]
	return out
}

// Uint is the little-endian number in the next n bytes, at most 8.
func (r *Reader) Uint(n uint64) uint64 {
	var word [8]byte
	copy(word[:], r.Take(n))
	return binary.LittleEndian.Uint64(word[:])
}
