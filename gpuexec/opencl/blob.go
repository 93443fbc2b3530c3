package opencl

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/kiln-cache/kiln/fault"
)

// magic begins every blob; its last byte is the version of the format. A SHA-256 over
// the source's key and the driver's binary follows, then that binary.
const magic = "kilnocl\x01"

const overhead = len(magic) + sha256.Size

func seal(key string, binary []byte) []byte {
	digest := digestOf(key, binary)
	return append(append([]byte(magic), digest[:]...), binary...)
}

// unseal gives the driver's binary of a blob that is whole and was made for the key. A
// driver must see no other.
func unseal(key string, blob []byte) ([]byte, error) {
	var why fault.Reason
	switch {
	case !bytes.HasPrefix(blob, []byte(magic)):
		why = fault.Format
	case len(blob) <= overhead:
		why = fault.Truncated
	default:
		content := blob[overhead:]
		digest := digestOf(key, content)
		if bytes.Equal(blob[len(magic):overhead], digest[:]) {
			return content, nil
		}
		why = fault.Checksum
	}
	err := failure("load", fault.ErrRefused, "no whole blob of this source")
	err.Reason = why
	return nil, err
}

func digestOf(key string, content []byte) (digest [sha256.Size]byte) {
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(key))))
	h.Write([]byte(key))
	h.Write(content)
	h.Sum(digest[:0])
	return digest
}
