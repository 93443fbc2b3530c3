//go:build unix

package blobstore_test

import (
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func abortsAll(c *blobstore.Config) { c.Aborts = func(string) bool { return true } }

// blob is what Get gives for a key that is there.
func (s *shop) blob(key string) blobstore.Blob {
	s.r.t.Helper()
	b, miss, err := s.Get(background, backend, key)
	s.r.want("get "+key, words(miss.Reason, err), " <nil>")
	return b
}

// P10, P11: power is lost in a driver, in a directory whose folder of marks is new.
func TestPowerLossWithANewFolderOfMarks(t *testing.T) {
	r := newRig(t)
	open := func(f vfs.FS) *shop {
		cfg := powerConfig(f, blobstore.Full)
		abortsAll(&cfg)
		s := &shop{r: r, cfg: cfg}
		s.reopen()
		t.Cleanup(s.shut)
		return s
	}
	disk := crashfs.New(nil)
	s := open(disk)
	r.want("put", s.put("k", "v"), "ok")
	b := s.blob("k")
	r.must(disk.RemoveAll("mark")) // and whoever opens the directory makes it again
	open(disk)
	leave, miss, err := s.Enter(background, backend, b)
	r.want("enter", words(miss.Reason, err), " <nil>")
	defer leave()
	r.want("after power was lost in the driver", open(disk.Clone(0, 1, nil)).died("k"), fault.Quarantined)
}
