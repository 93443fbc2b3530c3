//go:build unix

package tiers_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// trusting is a bench that signs and has blob k in memory; list replaces its list.
func trusting(t *testing.T) (b *bench, list func(public ed25519.PublicKey, revoked string)) {
	t.Helper()
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	list = func(public ed25519.PublicKey, revoked string) {
		t.Helper()
		text := fmt.Sprintf(`{"keys":[{"id":"ci","public":%q}],"revoked":[%q]}`, base64.StdEncoding.EncodeToString(public), revoked)
		err := os.WriteFile(dir+"/new", []byte(text), 0o600)
		if err == nil {
			err = os.Rename(dir+"/new", dir+"/trust.json")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	list(public, "")
	b = open(t, dir+"/d", 1, 1<<20, func(c *blobstore.Config) {
		c.Trust, c.Signer = dir+"/trust.json", &blobstore.Signer{ID: "ci", Key: private}
	})
	b.get("k", maker{value: "v"})
	b.settle()
	for end := time.Now().Add(20 * time.Second); ; { // the tier takes it in its own time
		hits := b.store.Stats().Hits
		b.find("k", "v")
		if b.store.Stats().Hits == hits {
			return b, list
		}
		if time.Now().After(end) {
			t.Fatal("never from memory")
		}
	}
}

// find looks for a blob and wants it, or a reason.
func (b *bench) find(key, is string) {
	b.t.Helper()
	found := b.tiers.Find(background, artefacts.Subject{Backend: "test", Key: key})
	want(b.t, "found", string(found.Blob)+string(found.Reason), is)
	if found.Reason == "" {
		found.Claim.Loaded()
	} else {
		found.Claim.Abandon()
	}
}

// P15: what lies in memory is not given any more once its signer was revoked.
func TestRevoked(t *testing.T) {
	b, list := trusting(t)
	list(make(ed25519.PublicKey, ed25519.PublicKeySize), "ci")
	b.find("k", string(fault.Revoked))
	want(t, "count", b.store.Stats().Reasons[fault.Revoked], 1)
}

// P15: nor once the key that verified it was replaced under its id.
func TestSignerIsReplaced(t *testing.T) {
	b, list := trusting(t)
	other, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	list(other, "")
	b.find("k", string(fault.UntrustedSigner))
	want(t, "count", b.store.Stats().Reasons[fault.UntrustedSigner], 1)
}
