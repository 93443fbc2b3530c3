package frame

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"

	"github.com/kiln-cache/kiln/internal/frame/hashlist"
)

const signatureSize = ed25519.SignatureSize

// Signer signs what Encode writes (SPEC P15). A nil *Signer signs nothing.
type Signer struct {
	ID  string             // of the key, as trust lists name it; not empty
	Key ed25519.PrivateKey // of 64 bytes: signing panics with another length
}

func (s *Signer) size() int {
	if s == nil {
		return 0
	}
	return 2 + len(s.ID) + signatureSize
}

func (s *Signer) block(id ID, head, payload []byte) []byte {
	if s == nil {
		return nil
	}
	out := binary.LittleEndian.AppendUint16(nil, uint16(len(s.ID)))
	out = append(out, s.ID...)
	return append(out, ed25519.Sign(s.Key, statement(id, head, payload, s.ID))...)
}

// statement is what is signed.
func statement(id ID, head, payload []byte, signer string) []byte {
	keySum := sha256.Sum256([]byte(id.Key))
	payloadSum := sha256.New()
	hashlist.Write(payloadSum, payload)
	out := append([]byte("kiln blob signature\x00"), head[:digestAt]...)
	out = appendText(out, id.Backend)
	out = append(out, keySum[:]...)
	out = payloadSum.Sum(out)
	out = appendText(out, signer)
	return append(out, head[Preamble:]...)
}

// Verify checks the signature of a parsed entry against the public key that its
// Signer should have.
func (e *Entry) Verify(public ed25519.PublicKey) bool {
	s := e.seal
	return len(public) == ed25519.PublicKeySize && len(s.signature) == signatureSize &&
		ed25519.Verify(public, statement(s.id, s.head, s.payload, e.Signer), s.signature)
}
