package kernels

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/binread"
)

// A blob is, in little-endian order:
//
//	magic     8 bytes
//	total     uint32, bytes of the whole blob
//	identity  uint16 length, bytes: Identity of the writer
//	spec      uint16 length, bytes: the text of the ops.Op
//	module    32 bytes: SHA-256 of the WebAssembly module the code is for
//	features  uint64: the instruction set the code was compiled for
//	code      uint32 length, bytes: the compiler's own file
//	digest    32 bytes: SHA-256 of everything before it
//
// Nothing behind total is looked at before the digest is verified.
type blob struct {
	identity string
	spec     string
	module   [sha256.Size]byte
	features uint64
	code     []byte
}

const (
	blobMagic = "kilncpu\x01"
	blobTail  = sha256.Size
	// minBlob is a blob whose variable parts are empty.
	minBlob = len(blobMagic) + 4 + 2 + 2 + sha256.Size + 8 + 4 + blobTail
	// maxBlob bounds what a reader looks at; kernels have a few kilobytes.
	maxBlob = 16 << 20
)

func (b blob) encode() []byte {
	total := minBlob + len(b.identity) + len(b.spec) + len(b.code)
	out := make([]byte, 0, total)
	out = append(out, blobMagic...)
	out = binary.LittleEndian.AppendUint32(out, uint32(total))
	out = binary.LittleEndian.AppendUint16(out, uint16(len(b.identity)))
	out = append(out, b.identity...)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(b.spec)))
	out = append(out, b.spec...)
	out = append(out, b.module[:]...)
	out = binary.LittleEndian.AppendUint64(out, b.features)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.code)))
	out = append(out, b.code...)
	digest := sha256.Sum256(out)
	return append(out, digest[:]...)
}

// parseBlob verifies a blob and takes it apart. The parts are slices of it.
func parseBlob(in []byte) (blob, error) {
	if len(in) == 0 {
		return blob{}, fault.Invalidf(opLoad, "the blob is empty")
	}
	head := in[:min(len(in), len(blobMagic))]
	switch {
	case !bytes.HasPrefix([]byte(blobMagic), head):
		return blob{}, refused(fault.Format, "magic", "it is no kernel of this backend or of another format version")
	case len(in) < minBlob:
		return blob{}, refused(fault.Truncated, "", "%d bytes are less than an empty blob", len(in))
	case len(in) > maxBlob:
		return blob{}, refused(fault.TooLarge, "", "%d bytes exceed %d", len(in), maxBlob)
	}
	switch total := binary.LittleEndian.Uint32(in[len(blobMagic):]); {
	case uint64(total) > uint64(len(in)):
		return blob{}, refused(fault.Truncated, "", "%d of %d bytes", len(in), total)
	case uint64(total) < uint64(len(in)):
		return blob{}, refused(fault.Trailing, "", "%d bytes instead of %d", len(in), total)
	}
	body, digest := in[:len(in)-blobTail], in[len(in)-blobTail:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], digest) {
		return blob{}, refused(fault.Checksum, "", "its SHA-256 is not the one it states")
	}
	r := binread.Reader{Rest: body[len(blobMagic)+4:]}
	var b blob
	b.identity = string(r.Take(uint64(r.Uint(2))))
	b.spec = string(r.Take(uint64(r.Uint(2))))
	copy(b.module[:], r.Take(sha256.Size))
	b.features = r.Uint(8)
	b.code = r.Take(r.Uint(4))
	if r.Short || len(r.Rest) != 0 {
		return blob{}, refused(fault.Format, "lengths", "its parts do not add up")
	}
	return b, nil
}

const opLoad = "kernels: load"

// refused is a blob's typed rejection (SPEC B3, R1).
func refused(reason fault.Reason, field, format string, args ...any) error {
	return &fault.Error{Op: opLoad, Backend: "cpu", Reason: reason, Field: field,
		Err: fmt.Errorf("%w: "+format, append([]any{fault.ErrRefused}, args...)...)}
}
