package constants

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/pressure"
)

// Key names a tensor: by the code that prepared it and an ID. Make the ID with
// Content or Versioned; never from an address (SPEC K5).
type Key struct {
	// Backend is a number that the program chooses for the code that prepares the tensor:
	// tensors of two numbers are two, whatever their IDs. 0 is one like any other, for a
	// program whose IDs tell them apart.
	Backend uint64
	ID      string
}

// Content is the ID of a tensor that is prepared from these bytes: a SHA-256 over
// the parts and their lengths.
func Content(parts ...[]byte) string {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	return "c" + string(h.Sum(nil))
}

// Versioned is the ID of a tensor that the caller names. The generation must
// change whenever the content does. An empty name gives an empty ID, which every
// call refuses (SPEC K6).
func Versioned(name string, generation uint64) string {
	if name == "" {
		return ""
	}
	return string(binary.LittleEndian.AppendUint64([]byte("v"), generation)) + name
}

func keyOf(n *node) Key { return Key{Backend: n.Sub, ID: n.Key} }

func (k Key) check(bytes int64) error {
	switch {
	case k.ID == "":
		return fault.Invalidf("constants: get", "the key is empty")
	case bytes < 0 || bytes > pressure.MostBytes:
		return fault.Invalidf("constants: get", "%d bytes declared: want 0 to 2^48", bytes)
	}
	return nil
}
