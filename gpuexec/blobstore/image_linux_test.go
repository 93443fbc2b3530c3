package blobstore_test

import (
	"bufio"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

var imageCount = flag.Int("images", 0, "copies of a mounted disk in TestImages; 50 is thorough. Needs root, loop devices, mkfs.ext4 and mkfs.xfs")

const imageRoom = 400 * mib // more than they store: nothing is evicted

// imaged is a disk in a file, mounted, that processes write to.
type imaged struct {
	r    *rig
	kind string
	mu   struct {
		sync.Mutex
		acknowledged map[string]bool // keys whose put with full has returned
	}
}

// command runs a program of the system.
func (r *rig) command(name string, args ...string) {
	r.t.Helper()
	if text, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		r.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
}

// mount mounts a file system in a file, until unmount or the end of the test.
func (r *rig) mount(file, at, options string) (unmount func()) {
	r.t.Helper()
	r.must(os.MkdirAll(at, 0o700))
	r.command("mount", "-o", options, file, at)
	unmount = sync.OnceFunc(func() {
		err := unix.Unmount(at, 0)
		for end := time.Now().Add(20 * time.Second); err == unix.EBUSY && time.Now().Before(end); err = unix.Unmount(at, 0) {
			time.Sleep(5 * time.Millisecond) // the kernel closes the files of a dead process a little later
		}
		if err != nil {
			r.t.Errorf("unmount %s: %v", at, err)
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	})
	r.t.Cleanup(unmount)
	return unmount
}

func (r *rig) sparse(name string, bytes int64) string {
	r.t.Helper()
	r.write(r.path(name), nil)
	r.must(os.Truncate(r.path(name), bytes))
	return r.path(name)
}

// writer starts a process that stores the same keys as the others.
func (d *imaged) writer(level blobstore.Durability) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-child="+strings.Join([]string{"acks", d.r.path("outer/" + d.kind + "/store"), fmt.Sprint(imageRoom), string(level)}, ","))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	d.r.must(err)
	d.r.must(cmd.Start())
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			d.mu.Lock()
			d.mu.acknowledged[lines.Text()] = level == blobstore.Full || d.mu.acknowledged[lines.Text()]
			d.mu.Unlock()
		}
	}()
	d.r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// lose copies the disk as it is now, which is what a loss of power would leave of it,
// and looks at the copy.
func (d *imaged) lose(n int, options string) (found int) {
	d.mu.Lock()
	keys := maps.Clone(d.mu.acknowledged)
	d.mu.Unlock()
	r := d.r
	from, err := os.Open(r.path("outer/" + d.kind + ".image"))
	r.must(err)
	defer from.Close()
	name := fmt.Sprintf("outer/%s.%d", d.kind, n)
	to, err := os.Create(r.path(name))
	r.must(err)
	r.must(unix.IoctlFileClone(int(to.Fd()), int(from.Fd()))) // at one moment
	r.must(to.Close())                                        // and is not removed: a loop device may still be of its inode
	defer r.mount(to.Name(), r.path(name+".at"), options)()
	s := &shop{r: r, cfg: r.config(filepath.Join(name+".at", "store"), imageRoom)}
	blobstore.SetFS(&s.cfg, func(root string) vfs.FS { return rebooted{vfs.Dir(root)} })
	s.reopen()
	bad := 0
	for key, mine := range keys {
		switch got := s.get(key); {
		case got == "v"+key[1:]:
			found++
		case mine || !strings.HasPrefix(got, "miss "):
			if bad++; bad < 4 {
				r.t.Errorf("%s, copy %d: %s, acknowledged %v, is %s", d.kind, n, key, mine, got)
			}
		}
	}
	r.want("lost or wrong", bad, 0)
	r.want("audit", s.audit(), "ok")
	r.want("put", s.put("after", "v"), "ok")
	s.shut()
	return found
}

// P9, P10: disks in files are copied at one moment, while three processes store on them:
// two with full, one that syncs nothing, all the same keys. Each copy is a machine that
// lost power then: what was acknowledged is there, and nothing is wrong.
func TestImages(t *testing.T) {
	if *imageCount == 0 {
		t.Skip("run it with -images=50")
	}
	if os.Getuid() != 0 {
		t.Skip("LEFT OUT: needs root, to mount")
	}
	for _, program := range []string{"mount", "mkfs.ext4", "mkfs.xfs"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("LEFT OUT:", err)
		}
	}
	r := newRig(t)
	r.command("mkfs.xfs", "-q", "-m", "reflink=1", r.sparse("outer.image", 4096*mib)) // which copies a file at one moment
	r.must(os.Mkdir(r.path("try"), 0o700))
	if text, err := exec.Command("mount", "-o", "loop", r.path("outer.image"), r.path("try")).CombinedOutput(); err != nil {
		t.Skipf("LEFT OUT: no loop devices: %v %s", err, text)
	}
	r.command("umount", r.path("try"))
	r.mount(r.path("outer.image"), r.path("outer"), "loop")
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			at := newRig(t)
			at.root = r.root
			d := &imaged{r: at, kind: kind}
			d.mu.acknowledged = map[string]bool{}
			file := at.sparse("outer/"+kind+".image", 512*mib)
			if kind == "ext4" { // has no more inodes later: an entry takes four, and where they end entries are evicted
				at.command("mkfs.ext4", "-q", "-N", "200000", file)
			} else {
				at.command("mkfs."+kind, "-q", file)
			}
			options := map[string]string{"ext4": "loop", "xfs": "loop,nouuid"}[kind]
			unmount := at.mount(file, at.path("outer/"+kind), options)
			var writers []*exec.Cmd
			for _, level := range []blobstore.Durability{blobstore.Full, blobstore.None, blobstore.Full} {
				writers = append(writers, d.writer(level))
			}
			found := 0
			for n := range (*imageCount + 1) / 2 {
				time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // when power is lost is what varies
				found = d.lose(n, options)
			}
			t.Logf("%d entries in the last copy", found)
			if found == 0 {
				t.Error("nothing was found: the test has lost its bite")
			}
			for _, w := range writers {
				_ = w.Process.Kill()
				_ = w.Wait()
			}
			unmount()
		})
	}
}

// P5: on a real file system that is full, two stores evict and go on; when others
// have filled it they load, open and prune, and store again after that.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("LEFT OUT: needs root, to mount")
	}
	for _, p := range []blobstore.Policy{blobstore.FIFO, blobstore.LRU} {
		r := newRig(t)
		r.must(os.Mkdir(r.path("disk"), 0o700))
		if err := unix.Mount("none", r.path("disk"), "tmpfs", 0, "size=2m,mode=700"); err != nil {
			t.Skip("LEFT OUT: no mount:", err)
		}
		t.Cleanup(func() { _ = unix.Unmount(r.path("disk"), unix.MNT_DETACH) })
		stores := [2]*shop{r.open("disk/d", 1000*mib, policy(p)), r.open("disk/d", 1000*mib, policy(p))}
		put := func(i int) {
			s, key := stores[i%2], fmt.Sprint("k", i)
			r.want("put", words(p, i, s.put(key, "v", putOptions{bytes: 12 * kib})), words(p, i, "ok"))
		}
		for i := range 200 {
			put(i)
		}
		r.want("the last", stores[0].get("k199"), "v")
		r.want("sound", words(stores[0].verify(), stores[1].verify()), "0 0")
		others, err := os.Create(r.path("disk/others"))
		r.must(err)
		for err == nil {
			_, err = others.Write(make([]byte, 4*kib))
		}
		r.must(others.Close())
		stores[0].put("x", "v") // which may make room, or not
		s := stores[0]
		s.reopen()
		r.want("opened", words(s.usage().Entries > 0, s.verify()), "true 0")
		r.must(s.Prune(background, 0))
		r.want("pruned", words(s.usage().Entries, s.audit(), stores[1].audit()), "0 ok ok")
		r.want("after", words(stores[1].put("after", "v"), s.get("after")), "ok v")
	}
}

// P5: the same in four processes, on a real file system.
func TestProcessesRaceOnAFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("LEFT OUT: needs root, to mount")
	}
	r := newRig(t)
	disk := r.path("disk")
	r.must(os.Mkdir(disk, 0o700))
	if err := unix.Mount("none", disk, "tmpfs", 0, "size=400k,mode=700"); err != nil {
		t.Skip("LEFT OUT: no mount:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	r.root = disk
	var crowd [4]*exec.Cmd
	for i := range crowd {
		crowd[i] = r.child("crowd", r.path("d"), fmt.Sprint(1000*mib), fmt.Sprint(i))
	}
	for _, c := range crowd {
		r.must(c.Wait())
	}
	// an entry whose line had no room is put in order by its time: no child's clock is ahead now
	r.clock(crowdKeys * blobstore.LongestPause)
	r.afterTheCrowd([2]*shop{r.open("d", 1000*mib), r.open("d", 1000*mib)})
}
