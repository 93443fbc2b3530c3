package layout

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Miss says why a file cannot be used. The zero Miss: it can.
type Miss struct {
	Reason fault.Reason
	Field  string // what the reason concerns, where it concerns a field
}

func (m Miss) String() string {
	if m.Field == "" {
		return string(m.Reason)
	}
	return string(m.Reason) + " (" + m.Field + ")"
}

// Reader gives n bytes of a file from offset, which Decode will not write to
// and may keep. Within the file's size an error is trouble of the machine.
type Reader func(offset, n int64) ([]byte, error)

// Bytes reads a file that lies in memory.
func Bytes(file []byte) Reader {
	return func(offset, n int64) ([]byte, error) { return file[offset : offset+n : offset+n], nil }
}

// Decode reads a file of size bytes. With an identity it must be that of the
// file, and a driver blob must begin with a standard header of that device;
// with nil a file of any identity is read, for tools. It reads no section
// before the header is verified and fits, so a foreign file costs a few hundred
// bytes however large it is. The error is what read returned, and comes with
// the reason `degraded`.
func Decode(size int64, read Reader, present *Identity) (*File, Miss, error) {
	d := decoder{size: size, read: read}
	f := &File{}
	d.header(f)
	if d.miss == (Miss{}) && present != nil {
		d.miss = present.Misfit(&f.Identity)
	}
	spirv := d.section(d.headerSize, d.spirvSize, spirvDigestAt)
	f.Blob = d.section(d.headerSize+d.spirvSize, d.blobSize, blobDigestAt)
	if d.miss == (Miss{}) {
		f.Entries, d.miss = entries(spirv, d.count)
	}
	if d.miss == (Miss{}) && present != nil && len(f.Blob) > 0 {
		d.miss = CheckBlob(f.Blob, present)
	}
	if d.miss != (Miss{}) {
		return nil, d.miss, d.err
	}
	return f, Miss{}, nil
}

type decoder struct {
	size int64
	read Reader

	head                            []byte // once verified
	headerSize, spirvSize, blobSize int64
	count                           uint32

	miss Miss // the first; nothing is looked at after it
	err  error
}

func (d *decoder) fail(reason fault.Reason) {
	if d.miss == (Miss{}) {
		d.miss.Reason = reason
	}
}

// fetch reads a part that is known to lie within the file.
func (d *decoder) fetch(offset, n int64) []byte {
	part, err := d.read(offset, n)
	switch {
	case err != nil:
		d.fail(fault.Degraded)
		d.err = err
	case int64(len(part)) != n: // shortened while it was being read
		d.fail(fault.Truncated)
	}
	return part
}

func (d *decoder) header(f *File) {
	first := d.fetch(0, min(d.size, Preamble))
	if d.miss != (Miss{}) {
		return
	}
	if miss := judge(first, d.size); miss != (Miss{}) {
		d.miss = miss
		return
	}
	d.headerSize = int64(binary.LittleEndian.Uint32(first[headerAt:]))
	if d.headerSize < identityAt || d.headerSize > min(d.size, largestHeader) {
		d.fail(fault.Format)
		return
	}
	head := d.fetch(0, d.headerSize)
	if d.miss != (Miss{}) {
		return
	}
	// The preamble again: somebody may be writing to the file.
	if sum := headerDigest(head); !bytes.Equal(sum[:], head[digestAt:digestAt+sha256.Size]) || !bytes.Equal(first, head[:len(first)]) {
		d.fail(fault.Checksum)
		return
	}
	var ok bool
	if f.Identity, ok = parseIdentity(head[identityAt:]); !ok {
		d.fail(fault.Format)
		return
	}
	d.head = head
	d.count = binary.LittleEndian.Uint32(head[countAt:])
	spirv, blob := binary.LittleEndian.Uint64(head[spirvAt:]), binary.LittleEndian.Uint64(head[blobAt:])
	rest := uint64(d.size - d.headerSize)
	if spirv > rest || blob != rest-spirv {
		d.fail(fault.Format)
		return
	}
	d.spirvSize, d.blobSize = int64(spirv), int64(blob)
}

// Preamble is how many bytes at the start of a file say whether it is one, how
// large it is, and how large its header.
const Preamble = headerAt + 4

// Announced is the size in bytes that a file announces with its preamble, which
// may be a lie, or why it is none that Decode reads.
func Announced(preamble []byte) (uint64, Miss) {
	if !strings.HasPrefix(magic, string(preamble[:min(len(preamble), len(magic))])) {
		return 0, Miss{Reason: fault.Format}
	}
	if len(preamble) < Preamble {
		return 0, Miss{Reason: fault.Truncated}
	}
	if binary.LittleEndian.Uint32(preamble[versionAt:]) != Version || binary.LittleEndian.Uint32(preamble[orderAt:]) != byteOrder {
		return 0, Miss{Reason: fault.Format}
	}
	return binary.LittleEndian.Uint64(preamble[totalAt:]), Miss{}
}

// judge looks at what every version begins with.
func judge(first []byte, size int64) Miss {
	switch total, miss := Announced(first); {
	case miss != (Miss{}):
		return miss
	case total > uint64(size):
		return Miss{Reason: fault.Truncated}
	case total < uint64(size):
		return Miss{Reason: fault.Trailing}
	}
	return Miss{}
}

// section reads and verifies one section, unless there is a miss already.
func (d *decoder) section(offset, n int64, digest int) []byte {
	if d.miss != (Miss{}) {
		return nil
	}
	part := d.fetch(offset, n)
	if d.miss != (Miss{}) {
		return nil
	}
	if sum := sha256.Sum256(part); !bytes.Equal(sum[:], d.head[digest:digest+sha256.Size]) {
		d.fail(fault.Checksum)
	}
	return part
}

// entries takes a verified SPIR-V section apart.
func entries(section []byte, count uint32) ([]Entry, Miss) {
	var list []Entry
	for ; count > 0; count-- {
		if len(section) < entryHead {
			return nil, Miss{Reason: fault.Truncated}
		}
		size := binary.LittleEndian.Uint32(section)
		name := binary.LittleEndian.Uint32(section[4:])
		e := Entry{Key: Key{Options: binary.LittleEndian.Uint64(section[8:]), Source: [sha256.Size]byte(section[16:])}}
		section = section[entryHead:]
		if size == 0 || size%4 != 0 || name == 0 {
			return nil, Miss{Reason: fault.Format}
		}
		if uint64(size)+uint64(name) > uint64(len(section)) {
			return nil, Miss{Reason: fault.Truncated}
		}
		e.Shader = string(section[:name])
		if n := len(list); n > 0 && list[n-1].Compare(e.Key) >= 0 { // a second of one key among them
			return nil, Miss{Reason: fault.Format}
		}
		e.Words = make([]uint32, size/4)
		for i := range e.Words {
			e.Words[i] = binary.LittleEndian.Uint32(section[int(name)+4*i:])
		}
		list = append(list, e)
		section = section[int(name)+int(size):]
	}
	if len(section) > 0 {
		return nil, Miss{Reason: fault.Trailing}
	}
	return list, Miss{}
}
