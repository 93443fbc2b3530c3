//go:build unix

package blobstore_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// published calls then when an entry has got its place.
type published struct {
	vfs.FS
	then *func()
}

func (p published) Rename(from, to string) error {
	err := p.FS.Rename(from, to)
	if err == nil && strings.HasPrefix(to, backend+"/") {
		(*p.then)()
	}
	return err
}

// P7: a put whose context ends when the entry has its place, and before others are read
// that are to go, has stored it and leaves no more than the capacity.
func TestPutEndsWithinTheCapacity(t *testing.T) {
	for n := range 36 { // a turn that is free and a context that has ended are taken by chance
		p := []blobstore.Policy{blobstore.FIFO, blobstore.LRU, blobstore.Cost}[n%3]
		r := newRig(t)
		then := func() {}
		s := r.open("d", 3*small, policy(p), func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS { return published{vfs.Dir(root), &then} })
		})
		for i := range 3 {
			r.want("put", s.put(fmt.Sprint("k", i), "v"), "ok")
		}
		s.SaveIndex()
		s.reopen()
		ctx, cancel := context.WithCancel(background)
		then = cancel
		r.want("stored", said(s.Put(ctx, backend, "k3", []byte("v"), time.Second)), "ok")
		r.want("ended", ctx.Err() != nil, true)
		u := s.usage()
		r.want("left", words(p, u.Entries, u.DiskBytes, s.audit(), s.get("k3")), words(p, 3, 3*small, "ok", "v"))
	}
}

// P7: an import that is broken off leaves no more than the capacity.
func TestImportEndsWithinTheCapacity(t *testing.T) {
	r := newRig(t)
	from := r.open("from", mib)
	for i := range 100 {
		r.want("put", from.put(fmt.Sprint("k", i), "v"), "ok")
	}
	var archive bytes.Buffer
	_, err := from.Export(background, &archive)
	r.must(err)
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	var stored atomic.Int64
	s := r.open("d", 60*small, func(c *blobstore.Config) { c.Listen = func(blobstore.Event) { stored.Add(1) } })
	_, err = s.Import(ctx, before{&archive, func() {
		if stored.Load() == 64 { // of which four are too much
			archive.Reset()
			cancel()
		}
	}})
	r.want("import", said(err), "error invalid")
	r.want("left", words(s.usage().DiskBytes <= 60*small, s.usage().Entries > 50, s.audit()), "true true ok")
}

// before calls a function before each read.
type before struct {
	io.Reader
	do func()
}

func (b before) Read(p []byte) (int, error) {
	b.do()
	return b.Reader.Read(p)
}

// P7: a store that is closed during an import ends within its capacity too.
func TestCloseDuringImportEndsWithinTheCapacity(t *testing.T) {
	r := newRig(t)
	from := r.open("from", mib)
	for i := range 100 {
		r.want("put", from.put(fmt.Sprint("k", i), "v"), "ok")
	}
	var archive bytes.Buffer
	_, err := from.Export(background, &archive)
	r.must(err)
	var stored atomic.Int64
	s := r.open("d", 60*small, func(c *blobstore.Config) {
		c.Listen = func(e blobstore.Event) {
			if e.Kind == "stored" {
				stored.Add(1)
			}
		}
	})
	_, err = s.Import(background, before{&archive, func() {
		if stored.Load() == 64 {
			s.shut()
		}
	}})
	r.want("import", said(err), "error closed")
	u := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).usage()
	r.want("left", words(u.DiskBytes <= 60*small, u.Entries > 50), "true true")
	s.reopen()
	r.want("audit", s.audit(), "ok")
}

// P7, P9: what killed writers leave of uses is taken over by the next that closes, and
// where they are many by the next that opens.
func TestUsesOfTheKilled(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	s.put("k", "v")
	r.want("use", s.get("k"), "v")
	s.shut()
	text := r.read(r.path("d/uses/" + r.names("d/uses")[0]))
	killed := func(n int) {
		for i := range n {
			name := fmt.Sprintf("%024x00000001", i+1)
			r.write(r.path("d/uses/"+name), bytes.Replace(text, []byte("closed"), []byte("open"), 1))
			r.write(r.path("d/lease/owner/"+name), nil)
		}
	}
	look := func(what string, files int, uses int64) {
		t.Helper()
		info, err := r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true }).Inspect(background, backend+"/"+s.Bucket("k")+"/0")
		r.want(what, words(len(r.names("d/uses")), len(r.names("d/lease/owner")), info.Uses, err), words(files, files-1, uses, nil))
	}
	killed(3)
	s.reopen()
	s.shut()
	s.reopen() // the sweep forgets who was killed
	s.shut()
	look("few", 1, 4)
	killed(70)
	s.reopen()
	r.want("many", len(r.names("d/uses")), 1)
	s.shut()
	s.reopen()
	s.shut()
	look("many", 1, 74)
}

// A store that is closed again does nothing more to the directory.
func TestCloseAgain(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib, policy(blobstore.LRU))
	s.put("k", "v")
	r.want("use", s.get("k"), "v")
	s.shut()
	r.must(os.RemoveAll(r.path("d/uses")))
	r.io("open")
	s.shut()
	r.want("files that were opened", r.io("open"), 0)
}

// P2, P7: leases, marks and uses leave nothing behind when they end, and openings one file
// of uses together; whoever ends first.
func TestFortyLeaveOneFileOfUses(t *testing.T) {
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
		r := newRig(t)
		s := r.open("d", mib, policy(p))
		s.put("unused", "v")
		s.shut()
		r.want("unused", len(r.names("d/uses")) == 0, p == blobstore.FIFO)
		var all []*shop
		for i := range 40 {
			s := r.open("d", mib, policy(p), func(c *blobstore.Config) { c.Aborts = func(string) bool { return true } })
			_, claim, _, err := s.Obtain(background, backend, words(i))
			r.must(err)
			r.must(claim.Save(background, []byte("v"), 0))
			b, _, err := s.Get(background, backend, words(i))
			r.must(err)
			leave, _, err := s.Enter(background, backend, b)
			r.must(err)
			leave()
			all = append(all, s)
		}
		for i := range all {
			all[(i*7)%len(all)].shut()
		}
		for folder, files := range map[string]int{"uses": 1, "mark": 0, "tmp": 0, "lease/key": 0, "lease/owner": 0, "lease/directory": 1} {
			r.want(words(p, folder), len(r.names("d/"+folder)), files)
		}
		s = r.open("d", mib, policy(p))
		info, err := s.Inspect(background, "test/"+s.Bucket("7")+"/0")
		r.want("its uses", words(info.Uses, err), "1 <nil>")
	}
}
