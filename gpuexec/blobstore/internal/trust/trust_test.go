//go:build unix

package trust_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/trust"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// P15: what is not a list is refused, and trusts nobody while a store is open.
func TestBadLists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	if _, err := trust.Open(path); err == nil {
		t.Error("opened a list that is not there")
	}
	key := base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize))
	good := fmt.Sprintf(`{"keys":[{"id":"a","public":%q}],"revoked":["b"]}`, key)
	for _, text := range []string{
		"", "[]", "{} {}", `{"keyz":[]}`, `{"keys":[{"id":"","public":"` + key + `"}]}`, `{"keys":[{"id":"a","public":"AAAA"}]}`,
		fmt.Sprintf(`{"keys":[{"id":"a","public":%q},{"id":"a","public":%q}]}`, key, key), good + "x",
	} {
		write(t, path, text)
		if _, err := trust.Open(path); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	write(t, path, good)
	l, err := trust.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]fault.Reason{"a": "", "b": fault.Revoked, "c": fault.UntrustedSigner, "": fault.Unsigned} {
		if got := l.Still(id, make([]byte, ed25519.PublicKeySize)); got.Reason != want {
			t.Errorf("%q: %v", id, got)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := l.Still("a", make([]byte, ed25519.PublicKeySize)); got.Reason != fault.UntrustedSigner || l.Err() == nil {
		t.Errorf("without a list: %v %v", got, l.Err())
	}
	write(t, path, good)
	if got := l.Still("a", make([]byte, ed25519.PublicKeySize)); !got.None() || l.Err() != nil {
		t.Errorf("again: %v %v", got, l.Err())
	}
	if none := (*trust.List)(nil); !none.Still("", nil).None() || none.Err() != nil {
		t.Error("no list trusts everybody")
	}
}

// A list may be asked while it changes; it is one list or the other.
func TestHammer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	key := base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize))
	lists := []string{fmt.Sprintf(`{"keys":[{"id":"a","public":%q}]}`, key), `{"revoked":["a"]}`}
	write(t, path, lists[0])
	l, err := trust.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if got := l.Still("a", make([]byte, ed25519.PublicKeySize)); !got.None() && got.Reason != fault.Revoked {
					t.Error(got)
				}
			}
		})
	}
	for i := range 20 {
		write(t, path, lists[i%2])
	}
	wg.Wait()
}
