package primitive

import (
	"hash/maphash"

	"github.com/cespare/xxhash/v2"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// Errors of this package; see package fault for what a caller should do.
var (
	ErrInvalid     = fault.ErrInvalid
	ErrRefused     = fault.ErrRefused
	ErrNotFound    = fault.ErrNotFound
	ErrUnsupported = fault.ErrUnsupported
)

// Key is a primitive's key: immutable, comparable with ==, safe for concurrent
// use. Equal keys have equal encodings; the hash is this process's own.
type Key struct {
	enc  string
	hash uint64
}

// seed makes the placing hash unpredictable from outside.
var seed = maphash.MakeSeed()

// Hash is the placing hash of an encoding, the same for an encoded key and its
// Key. It differs between processes.
func Hash(enc []byte) uint64 { return maphash.Bytes(seed, enc) }

// Encoding is the canonical encoding.
func (k Key) Encoding() string { return k.enc }

// Hash places the key in memory; it differs between processes.
func (k Key) Hash() uint64 { return k.hash }

// Place places the key where places outlive the process: xxhash64 of the encoding.
func (k Key) Place() uint64 { return xxhash.Sum64String(k.enc) }

// Equal compares whole keys. It is ==, spelled out.
func (k Key) Equal(other Key) bool { return k.hash == other.hash && k.enc == other.enc }

// Is tells whether an encoding is this key's, without making a key of it.
func (k Key) Is(enc []byte) bool { return k.enc == string(enc) }

// String is the key's fields for people to read.
func (k Key) String() string {
	text, err := canon.Print([]byte(k.enc), schema)
	if err != nil {
		return err.Error()
	}
	return text
}

// Key makes the key. Errors: ErrInvalid for a spec without a kind or with two
// settings for one argument; an *fault.Error with ErrRefused and the reason
// key_refused, naming the input, if an input has no digest.
func (s *Spec) Key() (Key, error) {
	var buf [512]byte
	enc, err := s.Append(buf[:0])
	if err != nil {
		return Key{}, err
	}
	return Key{string(enc), Hash(enc)}, nil
}

// Append appends the key's encoding; it allocates nothing if dst is large
// enough. For a lookup that borrows the caller's data (SPEC D4) compare it with
// Key.Is. Errors as in Key; dst is then returned as it was.
func (s *Spec) Append(dst []byte) ([]byte, error) { return s.append(dst, true) }

// AppendPortable appends the form of the key that is stored on disk: without
// device and context, which belong to the producer's identity there (SPEC P3).
func (s *Spec) AppendPortable(dst []byte) ([]byte, error) { return s.append(dst, false) }

// Fields lists what an encoding of this package holds.
func Fields(enc []byte) ([]canon.Field, error) { return canon.Fields(enc, schema) }

// Differ names the fields of K4 in which two encodings differ, sorted.
func Differ(a, b []byte) ([]string, error) { return canon.Differ(a, b, schema) }
