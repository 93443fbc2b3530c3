package frame

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/binread"
	"github.com/kiln-cache/kiln/internal/frame/hashlist"
)

const (
	// Preamble is the number of bytes that all versions begin with.
	Preamble = 8 + 4 + 8 + sha256.Size
	// Version is the one that Encode writes and Parse understands.
	Version = 2

	magic       = "KILNBLOB"
	digestAt    = 8 + 4 + 8
	keyAt       = Preamble
	payloadAt   = keyAt + 4
	signatureAt = payloadAt + 8
	createdAt   = signatureAt + 2
	costAt      = createdAt + 8
	identityAt  = costAt + 8

	mostText = math.MaxUint16
	mostISA  = 1024
)

// ID says what an entry is of. The digest and the signature cover it.
type ID struct {
	Backend string // without a byte of 0
	Key     string
}

// Flaw says why an entry cannot be used. The zero Flaw says that it can.
type Flaw struct {
	Reason fault.Reason
	Field  string // the field that the reason is about; empty if there is none
}

// None reports whether the entry can be used.
func (f Flaw) None() bool { return f.Reason == "" }

// Entry is one stored blob.
type Entry struct {
	Created  time.Time
	Cost     time.Duration // the time that compiling took
	Identity Identity      // of the producer
	Requires []string      // instruction sets without which it must not run
	Payload  []byte

	Begins int               // where the payload begins in the file; set by Parse
	Digest [sha256.Size]byte // of file, backend and key; set by Parse
	Signer string            // key id; empty = unsigned. Parse does not verify it
	seal   seal
}

// seal is what a signature is checked with.
type seal struct {
	id        ID
	head      []byte // preamble without digest, and all up to the payload
	payload   []byte
	signature []byte
}

// head gives the part of a file before the payload, without the digest. signature is
// the size of the signature block in bytes.
func (e *Entry) head(id ID, signature int) ([]byte, error) {
	out := make([]byte, identityAt, identityAt+256)
	copy(out, magic)
	le := binary.LittleEndian
	le.PutUint32(out[8:], Version)
	le.PutUint32(out[keyAt:], uint32(len(id.Key)))
	le.PutUint64(out[payloadAt:], uint64(len(e.Payload)))
	le.PutUint16(out[signatureAt:], uint16(signature))
	le.PutUint64(out[createdAt:], uint64(e.Created.UnixNano()))
	le.PutUint64(out[costAt:], uint64(e.Cost))
	texts := e.Identity.texts()
	for _, text := range texts {
		if len(text) > mostText {
			return nil, fault.Invalidf("frame: encode", "a field of the identity has %d bytes: want at most %d", len(text), mostText)
		}
		out = appendText(out, text)
	}
	if len(e.Requires) > mostISA {
		return nil, fault.Invalidf("frame: encode", "%d instruction sets: want at most %d", len(e.Requires), mostISA)
	}
	out = le.AppendUint16(out, uint16(len(e.Requires)))
	for _, text := range e.Requires {
		if len(text) > mostText {
			return nil, fault.Invalidf("frame: encode", "an instruction set has %d bytes: want at most %d", len(text), mostText)
		}
		out = appendText(out, text)
	}
	le.PutUint64(out[12:], uint64(len(out)+len(e.Payload)+signature))
	return out, nil
}

// HeadBytes is where the payload will begin in the file that Encode makes.
func (e *Entry) HeadBytes() int {
	head, _ := e.head(ID{}, 0) // neither changes its length; Encode gives the error
	return len(head)
}

func appendText(out []byte, text string) []byte {
	out = binary.LittleEndian.AppendUint16(out, uint16(len(text)))
	return append(out, text...)
}

// File is a file in three parts, which are written one after the other.
type File struct {
	Head    []byte // complete after Seal only
	Payload []byte // the one that was given to Encode
	Tail    []byte // signature block
}

// Encode lays out a file. signer may be nil. The caller must call Seal for the digest;
// it may write the payload meanwhile. The error is fault.ErrInvalid for a text that is
// too long.
func Encode(id ID, e Entry, signer *Signer) (File, error) {
	tail := signer.size()
	if int64(len(id.Key)) > math.MaxUint32 || tail > mostText {
		return File{}, fault.Invalidf("frame: encode", "the key or the signer's id is too long")
	}
	head, err := e.head(id, tail)
	if err != nil {
		return File{}, err
	}
	return File{head, e.Payload, signer.block(id, head, e.Payload)}, nil
}

// Size is the number of bytes of the whole file.
func (f File) Size() int64 { return int64(len(f.Head) + len(f.Payload) + len(f.Tail)) }

// OnDisk is what a file of so many bytes takes of a capacity: whole blocks of 4 KiB (SPEC P2).
func OnDisk(bytes int64) int64 {
	const block = 4 << 10
	return (bytes + block - 1) / block * block
}

// Seal computes the digest and puts it into Head.
func (f File) Seal(id ID) {
	digest := sum(id, f.Head, f.Payload, f.Tail)
	copy(f.Head[digestAt:], digest[:])
}

// sum is the digest of a file given in parts, the first of which holds the preamble.
// Version 1 did not cover the backend.
func sum(id ID, parts ...[]byte) (digest [sha256.Size]byte) {
	top := sha256.New()
	top.Write(parts[0][:digestAt])
	hashlist.Write(top, append([][]byte{parts[0][Preamble:]}, parts[1:]...)...)
	if binary.LittleEndian.Uint32(parts[0][8:]) > 1 {
		top.Write([]byte(id.Backend + "\x00"))
	}
	top.Write([]byte(id.Key))
	top.Sum(digest[:0])
	return digest
}

// CheckPreamble decides by the first bytes of a file whether the rest is worth
// reading. size is that of the file. head has Preamble bytes, or all of a shorter file.
func CheckPreamble(head []byte, size int64) Flaw {
	n := min(len(head), len(magic))
	if !bytes.Equal(head[:n], []byte(magic)[:n]) {
		return Flaw{fault.Format, "magic"}
	}
	if len(head) < Preamble {
		return Flaw{fault.Truncated, ""}
	}
	switch total := binary.LittleEndian.Uint64(head[12:]); {
	case total > uint64(size):
		return Flaw{fault.Truncated, ""}
	case total < uint64(size):
		return Flaw{fault.Trailing, ""}
	}
	return Flaw{}
}

// Parse verifies a whole file against what it should be of, and decodes it. The payload is a part
// of file. A sound file of another version is outdated.
func Parse(file []byte, id ID) (Entry, Flaw) {
	if flaw := CheckPreamble(file[:min(len(file), Preamble)], int64(len(file))); !flaw.None() {
		return Entry{}, flaw
	}
	var e Entry
	copy(e.Digest[:], file[digestAt:])
	if sum(id, file) != e.Digest {
		return Entry{}, Flaw{fault.Checksum, ""}
	}
	if binary.LittleEndian.Uint32(file[8:]) != Version {
		return e, Flaw{fault.Outdated, "format"}
	}
	return e, e.parse(file, id)
}

// parse reads what lies behind the preamble of a file that was verified.
func (e *Entry) parse(file []byte, id ID) Flaw {
	r := binread.Reader{Rest: file[Preamble:]}
	keyBytes, payload, tail := r.Uint(4), r.Uint(8), r.Uint(2)
	if keyBytes != uint64(len(id.Key)) {
		return Flaw{fault.Format, "key"}
	}
	e.readMeta(&r)
	head := len(file) - len(r.Rest)
	switch left := uint64(len(r.Rest)); {
	case r.Short:
		return Flaw{fault.Format, "length"}
	case payload > left || payload+tail > left:
		return Flaw{fault.Truncated, "length"}
	case payload+tail < left:
		return Flaw{fault.Trailing, "length"}
	}
	e.Begins = head
	e.Payload = r.Take(payload)
	if tail > 0 {
		e.Signer = text(&r)
		e.seal = seal{id: id, head: file[:head:head], payload: e.Payload, signature: r.Take(signatureSize)}
		if r.Short || len(r.Rest) > 0 || e.Signer == "" {
			return Flaw{fault.Format, "signature"}
		}
	}
	return Flaw{}
}

func (e *Entry) readMeta(r *binread.Reader) {
	e.Created = time.Unix(0, int64(r.Uint(8)))
	e.Cost = time.Duration(r.Uint(8))
	for _, field := range e.Identity.fields() {
		*field = text(r)
	}
	e.Requires = nil
	for n := r.Uint(2); n > 0 && !r.Short; n-- {
		e.Requires = append(e.Requires, text(r))
	}
}

// MetaSize is the number of first bytes that ReadMeta needs, for all but absurdly
// long identities. A processor with AVX-512 has a hundred instruction sets, which a
// file may name twice.
const MetaSize = 4096

// ReadMeta decodes the part before the payload without verifying it. That is enough
// to choose a victim or to print, never to load. ok is false if head is too short or
// of another version.
func ReadMeta(head []byte) (e Entry, ok bool) {
	if len(head) < identityAt || string(head[:len(magic)]) != magic {
		return Entry{}, false
	}
	if version := binary.LittleEndian.Uint32(head[8:]); version == 0 || version > Version { // 1 differs in the digest alone
		return Entry{}, false
	}
	copy(e.Digest[:], head[digestAt:])
	r := binread.Reader{Rest: head[createdAt:]}
	e.readMeta(&r)
	return e, !r.Short
}

// DigestOf is the digest that a file of at least Preamble bytes carries, unverified.
func DigestOf(file []byte) (digest [sha256.Size]byte) {
	copy(digest[:], file[digestAt:Preamble])
	return digest
}

// KeySize gives the size of the key that a file was written for, unverified. It tells
// in which way a key.bin was damaged.
func KeySize(head []byte) (int64, bool) {
	if len(head) < payloadAt || string(head[:len(magic)]) != magic {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint32(head[keyAt:])), true
}

// text reads a string after its length.
func text(r *binread.Reader) string { return string(r.Take(r.Uint(2))) }
