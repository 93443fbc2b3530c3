//go:build unix

package blobstore_test

import (
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P3, P12, K7: the identity that a device brings decides, whatever Config.Identity
// says of its backend; an entry of which nobody knows what it needs needs all that
// its device has.
func TestDevicesOfOneBackend(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib).Store
	first, second, unknown := defaultIdentity(), defaultIdentity(), defaultIdentity()
	second.Device, second.ISA = "another", []string{"avx2", "rare"}
	unknown.Build = ""
	get := func(s *blobstore.Store, key string) string {
		t.Helper()
		b, miss, err := s.Get(background, backend, key)
		return fmt.Sprint(string(b.Payload), miss.Reason, miss.Field, err)
	}
	a, b := s.For(first), s.For(second)
	r.must(a.Put(background, backend, "k", []byte("of a"), 0))
	r.want("its own", get(a, "k"), fmt.Sprint("of a", nil))
	r.want("the default's", get(s, "k"), fmt.Sprint("of a", nil))
	r.want("another's", get(b, "k"), fmt.Sprint("device_mismatchdevice", nil))
	r.must(b.Put(background, backend, "k", []byte("of b"), 0))
	r.want("side by side", get(a, "k")+get(b, "k"), fmt.Sprint("of a", nil, "of b", nil))
	r.want("unknown", get(s.For(unknown), "k"), fmt.Sprint("disabled", nil))
	r.want("unknown", said(s.For(unknown).Put(background, backend, "u", nil, 0)), "refused reason=disabled")
	narrow := second
	narrow.ISA = []string{"avx2"}
	r.want("needs not known", get(s.For(narrow), "k"), fmt.Sprint("incompatibleisa", nil))
	_, right, _, err := b.Obtain(background, backend, "built")
	r.must(err)
	r.must(right.Save(background, []byte("by b"), 0))
	r.want("built by b", get(b, "built")+get(a, "built"), fmt.Sprint("by b", nil, "device_mismatchdevice", nil))
}
