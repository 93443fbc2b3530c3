package sealed_test

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/sealed"
)

// P11, B3: no bit of a blob may be another one, and none may be missing.
func TestSeal(t *testing.T) {
	format := sealed.Format{Backend: "device", Magic: "blob\x01"}
	blob := format.Seal("key", []byte("binary"))
	if got, err := format.Open("key", blob); err != nil || string(got) != "binary" {
		t.Fatalf("%q, %v", got, err)
	}
	refuse := func(what, key string, blob []byte, want fault.Reason) {
		t.Helper()
		_, err := format.Open(key, blob)
		if reason, _ := fault.ReasonOf(err); !errors.Is(err, fault.ErrRefused) || reason != want {
			t.Errorf("%s: %v, want ErrRefused and %s", what, err, want)
		}
	}
	for i := range blob {
		for bit := range 8 {
			bad := []byte(string(blob))
			bad[i] ^= 1 << bit
			want := fault.Checksum
			if i < len(format.Magic) {
				want = fault.Format
			}
			refuse("a flipped bit", "key", bad, want)
		}
	}
	for n := range blob {
		want := fault.Truncated
		if n < len(format.Magic) {
			want = fault.Format
		} else if n > len(format.Magic)+sha256.Size {
			want = fault.Checksum
		}
		refuse("a short one", "key", blob[:n], want)
	}
	refuse("a long one", "key", append([]byte(string(blob)), 0), fault.Checksum)
	refuse("another key", "kez", blob, fault.Checksum)
	refuse("a shorter key", "ke", blob, fault.Checksum)
	refuse("a part of the key moved", "keyb", format.Seal("key", []byte("inary")), fault.Checksum)
}

// P11: bytes that move from the content to the key's end make another blob's digest: the
// key's length is in it.
func TestSealKeepsKeyAndContentApart(t *testing.T) {
	format := sealed.Format{Backend: "device", Magic: "blob\x01"}
	blob := format.Seal("key", []byte("binary"))
	head := len(blob) - len("binary")
	moved := append([]byte(string(blob[:head])), "inary"...) // the digest of key and binary, before what is left of it
	if _, err := format.Open("keyb", moved); !errors.Is(err, fault.ErrRefused) {
		t.Errorf("%v, want ErrRefused", err)
	}
}
