package blobstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// descriptors lists what this process has open below a folder.
func (r *rig) descriptors(dir string) (open []string) {
	r.t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	r.must(err)
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, r.path(dir)) {
			open = append(open, to)
		}
	}
	return open
}

// P13: a closed store keeps nothing of its directory and bases open, whatever opened or
// looked at them; what a driver is still busy with keeps them until it is done.
func TestCloseKeepsNothingOpen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close it some time
	r := newRig(t)
	base, other := r.open("base", mib), r.open("other", mib)
	r.want("put", words(base.put("in the base", "v"), other.put("k", "v")), "ok ok")
	base.shut()
	other.shut()
	s := r.open("d", 40*kib, policy(blobstore.LRU), func(c *blobstore.Config) {
		c.Bases, c.Aborts = []string{r.path("base"), r.path("missing")}, func(string) bool { return true }
	})
	s.fill(1, 9, 100)
	r.want("base", s.get("in the base"), "v")
	_, err := s.Merge(background, r.path("other"))
	r.must(err)
	_, c, _, err := s.Obtain(background, backend, "claimed")
	r.must(err)
	r.want("claimed", c.Token() > 0, true)
	b, _, err := s.Get(background, backend, "k9")
	r.must(err)
	leave, miss, err := s.Enter(background, backend, b)
	r.want("entered", words(miss.None(), err), "true <nil>")
	s.shut()
	r.want("in the driver", len(r.descriptors("")) > 0, true)
	leave()
	leave()
	c.Release()
	r.want("open", r.descriptors(""), "[]")
	r.want("marks and claims", words(r.names("d/mark"), r.names("d/lease/key"), r.names("d/lease/owner")), "[] [] []")

	ro := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })
	r.want("read", ro.usage().Entries > 0, true)
	ro.shut()
	r.must(os.WriteFile(r.path("file"), nil, 0o600))
	for _, name := range []string{"file", "open to all"} {
		_ = os.MkdirAll(r.path("open to all"), 0o700)
		r.must(os.Chmod(r.path("open to all"), 0o777))
		_, err := blobstore.Open(background, r.config(name, mib))
		r.want("refused", err != nil, true)
	}
	r.must(os.RemoveAll(filepath.Join(r.path("d"), "lease/directory")))
	r.write(r.path("d/lease/directory"), nil)
	_, err = blobstore.Open(background, r.config("d", mib))
	r.want("no folder", errors.Is(err, fault.ErrIO), true)
	r.want("open", r.descriptors(""), "[]")
}
