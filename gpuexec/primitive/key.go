package primitive

import (
	"hash/maphash"

	"github.com/kiln-cache/kiln/internal/canon"
)

// Key is a primitive's key: immutable, comparable with ==, safe for concurrent
// use. Equal keys have equal encodings; the hash is this process's own.
type Key struct {
	enc  string
	hash uint64
}

// seed makes the placing hash unpredictable from outside.
var seed = maphash.MakeSeed()

// Encoding is the canonical encoding.
func (k Key) Encoding() string { return k.enc }

// Hash places the key in memory; it differs between processes.
func (k Key) Hash() uint64 { return k.hash }

// String is the key's fields for people to read.
func (k Key) String() string {
	text, err := canon.Print([]byte(k.enc), schema)
	if err != nil {
		return err.Error()
	}
	return text
}

// Key makes the key. Errors: fault.ErrInvalid for a spec without a kind or with two
// settings for one argument; a *fault.Error with fault.ErrRefused and the reason
// key_refused, naming the input, if an input has no digest.
func (s *Spec) Key() (Key, error) {
	var buf [512]byte
	enc, err := s.append(buf[:0], true)
	if err != nil {
		return Key{}, err
	}
	return Key{string(enc), maphash.Bytes(seed, enc)}, nil
}
