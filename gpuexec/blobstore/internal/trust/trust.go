// Package trust decides which signatures of stored blobs count. It reads a list of
// public keys from a JSON file, and again when the file changes (SPEC P15).
//
//	{"keys": [{"id": "ci-1", "public": "BASE64 of 32 bytes"}], "revoked": ["ci-0"]}
//
// The file must be a plain file that belongs to this user or to root and that no
// other user can write. On systems without Unix's owners and modes Open answers
// fault.ErrUnsupported.
//
// A List is safe for concurrent use. While the file cannot be read no signature
// counts.
package trust

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/frame"
)

// most is the size of the largest list, in bytes.
const most = 1 << 20

// List is a trust list. To the nil List every entry is trusted, signed or not.
type List struct {
	path string
	mu   struct {
		sync.Mutex
		seen    stamp
		keys    map[string]ed25519.PublicKey
		revoked map[string]bool
		err     error
	}
}

// Open reads the list at a path. The error is fault.ErrIO for a file that cannot be
// read, fault.ErrRefused for one that others can write, and fault.ErrInvalid for one
// that is no trust list.
func Open(path string) (*List, error) {
	absolute, err := filepath.Abs(path) // the working directory may become another one
	if err != nil {
		return nil, &fault.Error{Op: "trust: open", Key: path, Err: fmt.Errorf("%w: %w", fault.ErrIO, err)}
	}
	l := &List{path: absolute}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshLocked()
	if err := l.mu.err; err != nil {
		return nil, &fault.Error{Op: "trust: open", Key: path, Err: err}
	}
	return l, nil
}

// Judge decides about a parsed entry, and gives the public key that verified it. The
// reason of a Flaw is unsigned, untrusted_signer or revoked.
func (l *List) Judge(e *frame.Entry) (ed25519.PublicKey, frame.Flaw) {
	if l == nil {
		return nil, frame.Flaw{}
	}
	public, flaw := l.signer(e.Signer)
	if flaw.None() && !e.Verify(public) {
		flaw = frame.Flaw{Reason: fault.UntrustedSigner, Field: "signature"}
	}
	return public, flaw
}

// Still decides again about an entry that the public key of an id has verified: since
// then the id may have been revoked, or have another key.
func (l *List) Still(id string, verified ed25519.PublicKey) frame.Flaw {
	if l == nil {
		return frame.Flaw{}
	}
	public, flaw := l.signer(id)
	if flaw.None() && !public.Equal(verified) {
		flaw = frame.Flaw{Reason: fault.UntrustedSigner, Field: "signature"}
	}
	return flaw
}

// signer gives the public key of an id that is trusted.
func (l *List) signer(id string) (ed25519.PublicKey, frame.Flaw) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refreshLocked()
	switch public, known := l.mu.keys[id]; {
	case id == "":
		return nil, frame.Flaw{Reason: fault.Unsigned, Field: "signature"}
	case l.mu.revoked[id]:
		return nil, frame.Flaw{Reason: fault.Revoked, Field: "signature"}
	case !known:
		return nil, frame.Flaw{Reason: fault.UntrustedSigner, Field: "signature"}
	default:
		return public, frame.Flaw{}
	}
}

// Err says why the file cannot be read at present. It is nil while it can.
func (l *List) Err() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

func (l *List) refreshLocked() {
	now, err := stampOf(l.path)
	if err == nil && l.mu.seen == now {
		return
	}
	l.mu.seen = now
	var text []byte
	l.mu.keys, l.mu.revoked = nil, nil
	if text, l.mu.err = read(l.path); l.mu.err != nil {
		l.mu.seen = stamp{} // what kept it from being read need not be of the file: try again
		return
	}
	l.mu.keys, l.mu.revoked, l.mu.err = parse(text)
}

func parse(text []byte) (keys map[string]ed25519.PublicKey, revoked map[string]bool, err error) {
	var file struct {
		Keys []struct {
			ID     string `json:"id"`
			Public []byte `json:"public"`
		} `json:"keys"`
		Revoked []string `json:"revoked"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, nil, fmt.Errorf(`%w: the trust list is no {"keys": [{"id": "…", "public": "…in base64"}], "revoked": ["…"]}: %w`, fault.ErrInvalid, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, fmt.Errorf("%w: the trust list has something behind its object", fault.ErrInvalid)
	}
	keys, revoked = make(map[string]ed25519.PublicKey), make(map[string]bool)
	for i, k := range file.Keys {
		_, twice := keys[k.ID]
		if k.ID == "" || twice || len(k.Public) != ed25519.PublicKeySize {
			return nil, nil, fmt.Errorf("%w: key %d of the trust list: want an id of its own and %d bytes in base64", fault.ErrInvalid, i+1, ed25519.PublicKeySize)
		}
		keys[k.ID] = k.Public
	}
	for _, id := range file.Revoked {
		revoked[id] = true
	}
	return keys, revoked, nil
}
