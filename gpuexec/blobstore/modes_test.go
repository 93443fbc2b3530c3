//go:build unix

package blobstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

const nobody = 65534

// asNobody gives what runs this binary as a user without privileges.
func (r *rig) asNobody() func(args ...string) (string, error) {
	r.t.Helper()
	for dir := r.root; dir != "/"; dir = dir[:max(1, strings.LastIndexByte(dir, '/'))] {
		info, err := os.Stat(dir)
		r.must(err)
		if info.Mode().Perm()&0o001 == 0 {
			r.must(os.Chmod(dir, info.Mode().Perm()|0o111))
		}
	}
	binary := r.path("binary")
	r.write(binary, r.read(os.Args[0]))
	r.must(os.Chmod(binary, 0o755))
	return func(args ...string) (string, error) {
		cmd := exec.Command(binary, args...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
}

// ofNobody makes a folder that belongs to that user.
func (r *rig) ofNobody(name string) string {
	r.t.Helper()
	r.must(os.Mkdir(r.path(name), 0o700))
	r.must(os.Chown(r.path(name), nobody, nobody))
	return r.path(name)
}

// P13, P4, P5: without privileges: another user's directory is refused, entries
// that may not be read are misses and are replaced.
func TestWithoutPrivileges(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to run a child as somebody else")
	}
	r := newRig(t)
	s := r.open("d", mib)
	s.put("k", "v")
	s.shut()
	r.must(os.Chmod(r.root, 0o755))
	run := r.asNobody()
	put := func(dir, value string) (string, error) {
		return run("-child=" + strings.Join([]string{"put", dir, words(mib), "k", value}, ","))
	}
	for _, mode := range []os.FileMode{0o700, 0o755} {
		r.must(os.Chmod(r.path("d"), mode))
		text, err := put(r.path("d"), "w")
		r.want("root's", err != nil && strings.Contains(text, "belongs to user 0"), true)
		r.want("could be read", strings.Contains(text, "set Config.ReadOnly"), mode == 0o755)
	}
	dir := r.ofNobody("own")
	own := func(value string) {
		if text, err := put(dir, value); err != nil {
			t.Fatal(err, text)
		}
	}
	own("first")
	if _, err := blobstore.Open(background, r.config("own", mib)); !errors.Is(err, fault.ErrRefused) {
		t.Error("root took the directory of a user who did not call it:", err)
	}
	t.Setenv("SUDO_UID", words(nobody))
	o := r.open("own", mib)
	r.must(os.Chmod(o.kernel("k"), 0))
	own("second")
	r.want("replaced", o.get("k"), "second")
	r.want("audit", o.audit(), "ok")
}

// P13, P14: what another user owns or can write is not loaded, in the directory and in
// a base, and the next store replaces it.
func TestSomebodyElses(t *testing.T) {
	foreign := map[string]func(name string) error{
		"mode":  func(name string) error { return os.Chmod(name, 0o777) },
		"owner": func(name string) error { return os.Chown(name, nobody, -1) },
	}
	if os.Getuid() != 0 {
		delete(foreign, "owner")
	}
	for field, change := range foreign {
		for _, name := range []string{"0/kernel.bin", "0/key.bin", ""} {
			r := newRig(t)
			s := r.open("d", mib)
			s.put("k", "v")
			over := r.open("over", mib, func(c *blobstore.Config) { c.Bases = []string{s.cfg.Dir} })
			r.want("a base", over.get("k"), "v")
			r.must(change(r.path("d/test/" + s.Bucket("k") + "/" + name)))
			r.want(name, s.get("k"), "miss reason=degraded field="+field)
			r.want("a base", over.get("k"), "miss reason=degraded field="+field)
			if name != "" {
				bad, err := s.Verify(background, false)
				r.want("verify", words(len(bad), bad[0].Flaw, err), "1 {degraded "+field+"} <nil>")
				r.want("put", s.put("k", "w"), "ok")
				r.want("get", words(s.get("k"), s.audit()), "w ok")
			}
		}
	}
}

// P5, P4: what may not be read costs what is in it, is told, and nothing else.
func TestOddModes(t *testing.T) {
	if os.Getuid() == 0 { // whom no mode stops
		r := newRig(t)
		run := r.asNobody()
		t.Setenv("TMPDIR", r.ofNobody("tmp"))
		text, err := run("-test.v", "-test.run=^TestOddModes$")
		if err != nil || !strings.Contains(text, "--- PASS: TestOddModes/") {
			t.Errorf("as user %d: %v\n%s", nobody, err, text)
		}
		return
	}
	for what, check := range oddModes {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			s := r.open("d", mib)
			s.put("a", "va")
			s.put("b", "vb")
			check(r, s)
		})
	}
}

// lock takes all rights of a name away, until the test ends.
func (r *rig) lock(path string) {
	r.t.Helper()
	info, err := os.Stat(path)
	r.must(err)
	r.must(os.Chmod(path, 0))
	r.t.Cleanup(func() {
		if err := os.Chmod(path, info.Mode().Perm()); err != nil && !os.IsNotExist(err) {
			r.t.Error(err)
		}
	})
}

// relist opens the store without an index, which tells nothing of modes.
func (s *shop) relist() {
	s.r.t.Helper()
	s.shut()
	s.r.must(os.Remove(filepath.Join(s.cfg.Dir, "lease/index")))
	st, err := blobstore.Open(background, s.cfg)
	s.r.must(err)
	s.Store = st
}

var oddModes = map[string]func(*rig, *shop){
	"bucket": func(r *rig, s *shop) {
		bucket := s.Bucket("a")
		r.lock(r.path("d/test/" + bucket))
		s.relist()
		r.want("put", s.put("c", "vc"), "ok")
		r.want("get", words(s.get("a"), s.get("b"), s.get("c")), "miss reason=degraded vb vc")
		for _, o := range []*shop{s, r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })} {
			r.want("counted", o.cfg.ReadOnly || o.Count(fault.Degraded) > 0, true)
			r.want("entries", o.usage().Entries, 2)
			out, err := o.Export(background, io.Discard)
			r.want("export", words(out.Taken, out.Rejected, err), "2 map[degraded:1] <nil>")
			bad, err := o.Verify(background, !o.cfg.ReadOnly)
			r.want("verify", words(len(bad), bad[0].Entry == "test/"+bucket+"/", bad[0].Flaw.Reason, err), "1 true degraded <nil>")
			_, err = o.Explain(background, backend, "d")
			r.must(err)
		}
		r.must(s.Prune(background, 0))
		r.want("pruned", s.usage().Entries, 0)
		r.want("audit", s.audit(), "ok")
		r.must(os.Chmod(r.path("d/test/"+bucket), 0o700))
		s.relist()
		r.want("back", words(s.get("a"), s.audit(), s.verify()), "va ok 0")
		r.lock(r.path("d/test"))
		s.relist()
		r.want("a backend", words(s.usage().Entries, s.verify(), s.put("k", "v", putOptions{backend: "gpu"})), "0 1 ok")
	},
	"slot": func(r *rig, s *shop) {
		r.lock(s.place("a"))
		s.relist()
		r.want("get", s.get("a"), "miss reason=degraded")
		for _, o := range []*shop{s, r.open("d", 0, func(c *blobstore.Config) { c.ReadOnly = true })} {
			r.want("entries", o.usage().Entries, 2)
			bad, err := o.Verify(background, !o.cfg.ReadOnly)
			r.want("verify", words(len(bad), bad[0].Entry == "test/"+s.Bucket("a")+"/0", bad[0].Flaw.Reason, err), "1 true degraded <nil>")
		}
		r.want("put beside it", s.put("a", "new"), "ok")
		r.want("get", s.get("a"), "new")
		r.must(s.Prune(background, 0))
		r.want("pruned", words(s.get("a"), s.get("b"), s.usage().Bytes), "miss reason=degraded miss reason=absent 0")
		for i := range 3 { // it is the oldest, and no store waits until it goes
			r.want("put", s.put(words(i), "v", putOptions{bytes: mib / 2}), "ok")
		}
		s.relist()
		r.want("audit", s.audit(), "ok")
	},
	"journal": func(r *rig, s *shop) {
		s.shut()
		r.lock(r.path("d/lease/journal"))
		s = r.open("d", mib)
		r.want("put", s.put("c", "vc"), "ok")
		other := r.open("d", mib)
		r.want("put", s.put("d", "vd"), "ok")
		r.want("followed", words(other.usage().Entries, other.audit(), other.Count(fault.Degraded)), "4 ok 0")
	},
	"quarantine": func(r *rig, s *shop) {
		r.lock(r.path("d/quarantine"))
		s.reopen()
		u := s.usage()
		r.want("usage", words(u.Entries, u.Bytes > 0, u.Quarantined, s.Count(fault.Degraded)), "2 true 0 1")
		r.want("audit", s.audit(), "ok")
	},
}

// P16: a store that can be read and not written is opened for reading: hits as ever, a
// write is degraded, nothing is made and nothing is swept. What is no store is an error.
func TestReadOnlyMount(t *testing.T) {
	r := newRig(t)
	w := r.open("d", mib)
	w.put("k", "v")
	w.shut()
	before := r.names("d/tmp")
	for _, errno := range []syscall.Errno{syscall.EROFS, syscall.EACCES} {
		sealed := func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS {
				return &unwritable{FS: vfs.Watch(vfs.Dir(root), func(op string) error {
					switch op {
					case "write", "rename", "sync":
						return errno
					}
					return nil
				}), errno: errno}
			})
		}
		r.log.text.Reset()
		s := r.open("d", mib, sealed)
		r.want("get", s.get("k"), "v")
		for range 2 {
			r.want("put", s.put("j", "v"), "refused reason=degraded")
		}
		r.want("logged", r.log.count("going on without"), 1)
		r.want("capacity, entries", words(s.usage().Capacity, s.usage().Entries), words(mib, 1))
		r.want("verify", s.verify(), 0)
		_, claim, miss, err := s.Obtain(background, backend, "j")
		r.want("obtain", words(claim == nil, miss.Reason, err), "true absent <nil>")
		r.want("prune", said(s.Prune(background, 0)), "refused reason=degraded")
		var archive bytes.Buffer
		_, err = s.Export(background, &archive)
		r.must(err)
		_, err = s.Import(background, &archive)
		r.want("import", said(err), "refused reason=degraded")
		_, err = s.Merge(background, r.path("d"))
		r.want("merge", said(err), "refused reason=degraded")
		r.want("nothing went", s.get("k"), "v")
		s.shut()
		r.want("nothing was made", words(r.names("d/tmp")), words(before))
		r.must(os.MkdirAll(r.path("none"), 0o700))
		_, err = blobstore.Open(background, r.config("none", mib, sealed))
		r.want("no store", said(err), "error io")
	}
}

// unwritable is a read-only mount.
type unwritable struct {
	vfs.FS
	errno syscall.Errno
}

func (u *unwritable) Create(name string) (vfs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: u.errno}
}
func (u *unwritable) Update(name string) (vfs.File, error) { return u.Create(name) }

func (u *unwritable) Mkdir(name string) error {
	if _, err := u.Lstat(name); err == nil { // what is there comes first
		return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.EEXIST}
	}
	return &fs.PathError{Op: "mkdir", Path: name, Err: u.errno}
}

// P13: what root makes in the directory of the user who called it belongs to that user, who
// goes on using it.
func TestRootLeavesTheDirectoryToItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("SUDO_UID", words(nobody))
	r := newRig(t)
	run := r.asNobody()
	dir := r.ofNobody("own")
	s := r.open("own", mib, policy(blobstore.LRU))
	r.want("put", words(s.put("k", "v"), s.put("j", "v"), s.get("k")), "ok ok v")
	_, claim, _, err := s.Obtain(background, backend, "built")
	r.must(err)
	r.must(claim.Save(background, []byte("v"), 0))
	r.flip(s.kernel("j"), -1)
	r.want("set aside", words(s.get("j"), len(r.names("own/quarantine"))), "miss reason=checksum 1")
	s.shut()
	r.must(filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		r.must(err)
		r.want(path, info.Sys().(*syscall.Stat_t).Uid, nobody)
		return nil
	}))
	text, err := run("-child=" + strings.Join([]string{"put", dir, words(mib), "mine", "w"}, ","))
	r.want("its user puts", words(text, err), words("", nil))
	s = r.open("own", mib)
	r.want("get", words(s.get("k"), s.get("mine"), s.get("built"), s.audit()), "v w v ok")
}

// P13: so does a directory that root makes in a folder of that user, with the folders above
// it; one in a folder of root's, or for a user who did not call it, stays root's.
func TestRootMakesTheDirectoryForItsUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	r := newRig(t)
	run := r.asNobody()
	home := r.ofNobody("home")
	owner := func(name string) uint32 {
		info, err := os.Lstat(r.path(name))
		r.must(err)
		return info.Sys().(*syscall.Stat_t).Uid
	}
	r.open("home/roots", mib).shut()
	r.want("nobody called", words(owner("home/roots"), owner("home/roots/tmp")), "0 0")
	t.Setenv("SUDO_UID", words(nobody))
	r.open("roots/own", mib).shut()
	r.want("in root's", words(owner("roots"), owner("roots/own")), "0 0")
	s := r.open("home/a/b/own", mib, policy(blobstore.LRU))
	r.want("put", s.put("k", "v"), "ok")
	s.shut()
	r.must(filepath.WalkDir(filepath.Join(home, "a"), func(path string, _ fs.DirEntry, err error) error {
		r.must(err)
		info, err := os.Lstat(path)
		r.must(err)
		r.want(path, info.Sys().(*syscall.Stat_t).Uid, nobody)
		return nil
	}))
	text, err := run("-child=" + strings.Join([]string{"put", s.cfg.Dir, words(mib), "mine", "w"}, ","))
	r.want("its user puts", words(text, err), words("", nil))
}

// P13: of several first runs by root for a user, at the same time, none fails, and none leaves
// anything that is not the user's.
func TestFirstRunsForAUserAtOnce(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("SUDO_UID", words(nobody))
	r := newRig(t)
	home := r.ofNobody("home")
	for round := range 10 {
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range 8 {
			wg.Go(func() {
				<-begin
				s, err := blobstore.Open(background, r.config(fmt.Sprintf("home/%d/b/own", round), mib))
				if err == nil {
					err = errors.Join(s.Put(background, backend, words(i), []byte("v"), 0), s.Close(background))
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
	}
	r.must(filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
		r.must(err)
		info, err := os.Lstat(path)
		r.must(err)
		r.want(path, info.Sys().(*syscall.Stat_t).Uid, nobody)
		return nil
	}))
}

// P13: root uses the directory of the user who called it, who exchanges folders of it, and
// the directory itself, for links and for folders of their own: nothing outside of what
// root opened is read, moved or removed.
func TestRootAgainstAUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("SUDO_UID", words(nobody))
	r := newRig(t)
	home := r.ofNobody("home")
	r.ofNobody("home/d")
	own := func() {
		t.Helper()
		r.must(filepath.WalkDir(home, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, nobody, nobody))
		}))
	}
	victim := r.path("victim")
	var files []string
	for i := range 20 {
		for _, name := range []string{words(i), words(i) + "/0/key.bin", words(i) + "/0/kernel.bin"} {
			if file := filepath.Join(victim, "of", name); strings.Contains(name, "/") {
				r.write(file, []byte("mine"))
			}
		}
		r.write(filepath.Join(victim, words(i)), []byte("mine"))
	}
	look := func() (found []string) {
		r.must(filepath.WalkDir(victim, func(path string, _ fs.DirEntry, err error) error {
			found = append(found, path)
			return err
		}))
		return found
	}
	files = look()
	s := r.open("home/d", mib)
	s.put("k", "v")
	own()
	use := func(what string) {
		t.Helper()
		r.clock(2 * time.Hour)
		r.age(2*time.Hour, "home/d/tmp", "home/d/uses") // what has no owner is old by now
		s.get("k")
		s.put(what, "v")
		_, _ = s.Verify(background, true)
		_ = s.Prune(background, 40*small)
		if again, err := blobstore.Open(background, s.cfg); err == nil {
			_ = again.Prune(background, 40*small)
			r.must(again.Close(background))
		}
		r.want(what, words(look()), words(files))
	}
	use("nothing")
	for _, folder := range []string{"tmp", "uses", "mark", "quarantine", "lease", "lease/key", "lease/owner", "test", "test/" + s.Bucket("k")} {
		at := filepath.Join(home, "d", folder)
		aside := filepath.Join(home, "aside")
		r.must(os.Rename(at, aside))
		r.must(os.Symlink(victim, at))
		own()
		use(folder)
		r.must(os.RemoveAll(at)) // the link, or what was made in its place
		r.must(os.Rename(aside, at))
	}
	r.want("get", s.get("k"), "v")
	r.must(os.Rename(home, home+"-"))
	r.must(os.CopyFS(home, os.DirFS(home+"-")))
	r.must(filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(path, 0o700)
		}
		return err
	}))
	r.must(os.RemoveAll(filepath.Join(home, "d", "test")))
	r.want("held", words(s.get("k"), s.put("new", "v"), r.exists(filepath.Join(home, "d", "test")), r.exists(filepath.Join(home+"-", "d", "test", s.Bucket("new")))), "v ok false true")
}

// P13: a user who links a file of root into the own directory has root neither write to it nor
// give its content away.
func TestRootAgainstAUsersHardLinks(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("SUDO_UID", words(nobody))
	for _, name := range []string{"lease/directory/0", "lease/journal", "lease/refused", "lease/settings", "lease/late", "size.txt", "key.bin", "kernel.bin"} {
		r := newRig(t)
		r.ofNobody("d")
		s := r.open("d", mib)
		r.want("put", words(s.put("k", "v"), s.put("refused", "v")), "ok ok")
		b := s.blob("refused")
		s.shut()
		secret, link := r.path("secret"), filepath.Join(s.cfg.Dir, name)
		if strings.HasSuffix(name, ".bin") {
			link = s.place("k", name)
		}
		text := strings.Repeat("known to root\n", 32<<10)
		r.write(secret, []byte(text))
		r.must(os.RemoveAll(link))
		r.must(os.Link(secret, link))
		if again, err := blobstore.Open(background, s.cfg); err == nil {
			_, _, _ = again.Get(background, backend, "k")
			_ = again.Put(background, backend, "k", []byte("v"), 0)
			_ = again.Refuse(background, b)
			_, _ = again.Verify(background, true)
			r.must(again.Close(background))
		}
		r.want(name+": root's file", string(r.read(secret)) == text, true)
		mine, err := os.Stat(secret)
		r.must(err)
		r.must(filepath.WalkDir(s.cfg.Dir, func(path string, _ fs.DirEntry, err error) error {
			r.must(err)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && !os.SameFile(info, mine) {
				r.want(path+" tells", strings.Contains(string(r.read(path)), "known to root"), false)
			}
			return nil
		}))
	}
}
