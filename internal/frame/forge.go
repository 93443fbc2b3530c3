package frame

import (
	"bytes"
	"encoding/binary"

	"github.com/kiln-cache/kiln/fault"
)

// Forge gives a copy of a file with one field changed and the digest of the result,
// so that only a check of that field can find it. The field is "format", the version,
// or "length", that of the payload. Forge is for tests of readers.
func Forge(file []byte, id ID, field string, value uint64) ([]byte, error) {
	if len(file) < identityAt {
		return nil, fault.Invalidf("frame: forge", "%d bytes are no entry", len(file))
	}
	out := bytes.Clone(file)
	switch field {
	case "format":
		binary.LittleEndian.PutUint32(out[8:], uint32(value))
	case "length":
		binary.LittleEndian.PutUint64(out[payloadAt:], value)
	default:
		return nil, fault.Invalidf("frame: forge", "no field %q: want format or length", field)
	}
	digest := sum(id, out)
	copy(out[digestAt:], digest[:])
	return out, nil
}
