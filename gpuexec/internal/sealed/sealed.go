// Package sealed puts what a driver makes behind a digest over it and the key of its
// source: a driver that checks nothing is given only what is whole, and its own (SPEC P11).
package sealed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// Format is that of a backend's blobs. Magic begins each; its last byte is the version.
type Format struct{ Backend, Magic string }

// Seal is the blob of a content: the magic, a SHA-256 over the key and the content, and
// the content.
func (f Format) Seal(key string, content []byte) []byte {
	digest := digestOf(key, content)
	return append(append([]byte(f.Magic), digest[:]...), content...)
}

// Open gives the content of a blob that is whole and was made for the key, or else an
// ErrRefused with its reason. The content is a part of the blob.
func (f Format) Open(key string, blob []byte) ([]byte, error) {
	overhead := len(f.Magic) + sha256.Size
	why := fault.Checksum
	switch {
	case !bytes.HasPrefix(blob, []byte(f.Magic)):
		why = fault.Format
	case len(blob) <= overhead:
		why = fault.Truncated
	default:
		content := blob[overhead:]
		if digest := digestOf(key, content); bytes.Equal(blob[len(f.Magic):overhead], digest[:]) {
			return content, nil
		}
	}
	return nil, &fault.Error{Op: f.Backend + ": load", Key: key, Backend: f.Backend, Reason: why,
		Err: fmt.Errorf("%w: no whole blob of this source", fault.ErrRefused)}
}

func digestOf(key string, content []byte) (digest [sha256.Size]byte) {
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(key))))
	h.Write([]byte(key))
	h.Write(content)
	h.Sum(digest[:0])
	return digest
}
