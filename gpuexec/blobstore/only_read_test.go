//go:build unix

package blobstore_test

import (
	"bytes"
	"io"
	"io/fs"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// onlyRead is a file system that tells of each attempt to change it.
type onlyRead struct {
	vfs.FS
	told func(op, name string)
}

func (o onlyRead) Create(name string) (vfs.File, error) {
	o.told("create", name)
	return o.FS.Create(name)
}
func (o onlyRead) Update(name string) (vfs.File, error) {
	o.told("update", name)
	return o.FS.Update(name)
}
func (o onlyRead) MakeRoot(heir func(owner uint32) bool) error {
	o.told("mkdir", ".")
	return o.FS.MakeRoot(heir)
}
func (o onlyRead) Chmod(name string, perm fs.FileMode) error {
	o.told("chmod", name)
	return o.FS.Chmod(name, perm)
}
func (o onlyRead) Mkdir(name string) error      { o.told("mkdir", name); return o.FS.Mkdir(name) }
func (o onlyRead) Rename(from, to string) error { o.told("rename", from); return o.FS.Rename(from, to) }
func (o onlyRead) Exchange(a, b string) error   { o.told("exchange", a); return o.FS.Exchange(a, b) }
func (o onlyRead) Link(from, to string) error   { o.told("link", from); return o.FS.Link(from, to) }
func (o onlyRead) RemoveIf(name string, still func() bool) error {
	o.told("remove", name)
	return o.FS.RemoveIf(name, still)
}
func (o onlyRead) Remove(name string) error { o.told("remove", name); return o.FS.Remove(name) }
func (o onlyRead) RemoveAll(name string) error {
	o.told("remove all", name)
	return o.FS.RemoveAll(name)
}
func (o onlyRead) SyncDir(name string) error { o.told("sync", name); return o.FS.SyncDir(name) }
func (o onlyRead) SyncAll() error            { o.told("sync", "all"); return o.FS.SyncAll() }

// P14, P16: no call changes a base, or a store that was opened for reading: it tries
// nothing there, whatever it finds.
func TestOnlyRead(t *testing.T) {
	for _, base := range []bool{true, false} {
		r := newRig(t)
		filled := r.open("read", mib)
		filled.fill(1, 9, 10)
		for _, key := range []string{"good", "bad", "refused", "crashed"} {
			r.want("put", filled.put(key, "v"), "ok")
		}
		r.flip(filled.kernel("bad"), -1)
		filled.shut()
		before := r.tree("read")
		options := func(c *blobstore.Config) {
			c.Durability, c.Aborts = blobstore.Full, func(string) bool { return true }
			blobstore.SetFS(c, func(root string) vfs.FS {
				if root != r.path("read") {
					return vfs.Dir(root)
				}
				return onlyRead{vfs.Dir(root), func(op, name string) { t.Errorf("base %t: %s %s", base, op, name) }}
			})
		}
		s := r.open("other", mib, options)
		r.want("put", s.put("theirs", "v"), "ok")
		var archive bytes.Buffer
		_, err := s.Export(background, &archive)
		r.must(err)
		if base {
			s = r.open("d", mib, options, func(c *blobstore.Config) { c.Bases = []string{r.path("read")} })
		} else {
			also := r.open("also", mib)
			also.put("worse", "v")
			r.flip(also.kernel("worse"), -1)
			s = r.open("read", 4*small, options, policy(blobstore.LRU), func(c *blobstore.Config) { c.ReadOnly, c.Bases = true, []string{r.path("also")} })
			r.want("of a base", s.get("worse"), "miss reason=checksum")
		}
		r.want("get", words(s.get("good"), s.get("bad"), s.get("absent")), "v miss reason=checksum miss reason=absent")
		b, _, err := s.Get(background, backend, "refused")
		r.must(err)
		leave, miss, err := s.Enter(background, backend, b)
		r.want("enter", words(miss.None(), err), "true <nil>")
		leave()
		r.must(s.Refuse(background, b))
		want := "ok"
		if !base {
			want = "refused reason=disabled"
		}
		r.want("put", words(s.put("good", "w"), s.put("bad", "w"), s.put("new", "w")), words(want, want, want))
		_, claim, _, err := s.Obtain(background, backend, "absent")
		if r.must(err); claim != nil {
			claim.Release()
		}
		next, claim, err := s.Succeed(background, backend, "crashed", b)
		r.want("succeed", words(next != nil, claim == nil, err), words(base, true, nil))
		r.must(s.Prune(background, 0))
		_, err = s.Verify(background, true)
		r.must(err)
		_, err = s.Import(background, &archive)
		r.want("import", said(err), want)
		_, err = s.Merge(background, r.path("read"), r.path("other"))
		r.want("merge", said(err), want)
		r.want("usage", s.usage().Entries, map[bool]int{true: 1, false: 13}[base]) // a base is not counted
		r.must(s.List(background, func(blobstore.Info) error { return nil }))
		info, err := s.Inspect(background, backend+"/"+s.Bucket("good")+"/0")
		r.want("inspect", words(info.Key, err == nil), map[bool]string{true: " false", false: "good true"}[base])
		_, err = s.Explain(background, backend, "bad")
		r.must(err)
		_, err = s.Export(background, io.Discard)
		r.must(err)
		r.clock(3 * time.Hour)
		s.put("later", "v") // which sweeps
		r.want("reasons", s.Stats().Reasons[fault.Degraded], 0)
		s.shut()
		r.want("unchanged", r.tree("read"), before)
	}
}
