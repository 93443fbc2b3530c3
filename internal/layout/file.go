package layout

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// Version is the format version that Encode writes and Decode reads.
const Version = 1

// magic ends in line ends of both kinds: a transfer as text breaks it at once.
const magic = "\x89KILNP\r\n"

const byteOrder = 0x01020304

// Where the fixed fields of the header lie.
const (
	versionAt     = 8
	orderAt       = 12
	totalAt       = 16
	digestAt      = 24
	headerAt      = 56
	countAt       = 60
	spirvAt       = 64
	spirvDigestAt = 72
	blobAt        = 104
	blobDigestAt  = 112
	identityAt    = 144

	largestHeader = 16 << 10 // far above what the longest strings make
	entryHead     = 48       // bytes of an entry before its name
)

// Key says which SPIR-V an entry holds (SPEC V3).
type Key struct {
	Shader  string // identity of the shader, never empty
	Options uint64 // option bits it was compiled with
	Source  [sha256.Size]byte
}

// Compare orders keys as a file does.
func (k Key) Compare(other Key) int {
	return cmp.Or(cmp.Compare(k.Shader, other.Shader), cmp.Compare(k.Options, other.Options), bytes.Compare(k.Source[:], other.Source[:]))
}

// Entry is the SPIR-V of one key.
type Entry struct {
	Key
	Words []uint32 // at least one
}

// File is what a pipeline-cache file says.
type File struct {
	Identity Identity
	Entries  []Entry // strictly ascending by Compare
	Blob     []byte  // the driver's, Vulkan header included; empty = none
}

// Size is the number of bytes that Encode will make of f.
func (f *File) Size() int64 {
	size := int64(identityAt + len(f.Identity.appendTo(nil)) + len(f.Blob))
	for i := range f.Entries {
		size += f.Entries[i].size()
	}
	return size
}

func (e *Entry) size() int64 { return entryHead + int64(len(e.Shader)) + 4*int64(len(e.Words)) }

// Encode gives the file's bytes: for equal content always the same.
func Encode(f *File) ([]byte, error) {
	const op = "pipelinefile: encode"
	if err := f.Identity.Validate(); err != nil {
		return nil, err
	}
	for i := range f.Entries {
		e := &f.Entries[i]
		switch {
		case e.Shader == "" || len(e.Words) == 0 || int64(len(e.Words)) > math.MaxUint32/4 || int64(len(e.Shader)) > math.MaxUint32:
			return nil, fault.Invalidf(op, "entry %d: want a name and at least one word of SPIR-V, each below 4 GiB", i)
		case i > 0 && f.Entries[i-1].Compare(e.Key) >= 0:
			return nil, fault.Invalidf(op, "entry %d: want the entries sorted and each key once", i)
		}
	}
	out := make([]byte, identityAt, f.Size())
	copy(out, magic)
	binary.LittleEndian.PutUint32(out[versionAt:], Version)
	binary.LittleEndian.PutUint32(out[orderAt:], byteOrder)
	binary.LittleEndian.PutUint32(out[countAt:], uint32(len(f.Entries)))
	out = f.Identity.appendTo(out)
	binary.LittleEndian.PutUint32(out[headerAt:], uint32(len(out)))
	for i := range f.Entries {
		out = f.Entries[i].appendTo(out)
	}
	out = append(out, f.Blob...)
	seal(out, len(out)-len(f.Blob))
	return out, nil
}

func (e *Entry) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(4*len(e.Words)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(e.Shader)))
	dst = binary.LittleEndian.AppendUint64(dst, e.Options)
	dst = append(dst, e.Source[:]...)
	dst = append(dst, e.Shader...)
	for _, w := range e.Words {
		dst = binary.LittleEndian.AppendUint32(dst, w)
	}
	return dst
}

// seal makes every length and digest of a file right; its blob begins at blob.
func seal(file []byte, blob int) {
	header := int(binary.LittleEndian.Uint32(file[headerAt:]))
	binary.LittleEndian.PutUint64(file[totalAt:], uint64(len(file)))
	binary.LittleEndian.PutUint64(file[spirvAt:], uint64(blob-header))
	binary.LittleEndian.PutUint64(file[blobAt:], uint64(len(file)-blob))
	sum := sha256.Sum256(file[header:blob])
	copy(file[spirvDigestAt:], sum[:])
	sum = sha256.Sum256(file[blob:])
	copy(file[blobDigestAt:], sum[:])
	sum = headerDigest(file[:header])
	copy(file[digestAt:], sum[:])
}

// headerDigest is over the header with the digest itself left out.
func headerDigest(header []byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	h.Write(header[:digestAt])
	h.Write(header[digestAt+sha256.Size:])
	h.Sum(sum[:0])
	return sum
}

// Sort brings entries into the order of a file.
func Sort(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int { return a.Compare(b.Key) })
}
