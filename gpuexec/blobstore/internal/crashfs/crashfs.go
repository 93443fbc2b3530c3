package crashfs

import (
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// FS is a file system with one root, which exists.
type FS struct {
	after    func(op string)
	boot     string
	unlocked *sync.Cond // an advisory lock was given back

	mu struct {
		sync.Mutex
		root    *node
		nodes   uint64
		pending []change // of names, in order
	}
}

var _ vfs.FS = (*FS)(nil)

var boots atomic.Uint64

// New is an empty file system. after, if not nil, is called at the end of every
// operation that changed something, outside of all locks.
func New(after func(op string)) *FS {
	f := &FS{after: after, boot: strconv.FormatUint(boots.Add(1), 10)}
	f.unlocked = sync.NewCond(&f.mu)
	f.mu.root = f.newNode(fs.ModeDir | 0o700)
	return f
}

// node is a file or folder: as it is now, and as it would be after a crash.
type node struct {
	inode uint64
	mode  fs.FileMode
	time  time.Time
	links int
	lock  *file // who holds the advisory lock

	content, durable []byte
	writes           []write // since the last sync

	names, durableNames map[string]*node // of a folder
}

type write struct {
	offset int64
	bytes  []byte
}

// change is one change of names: an edit in one folder, or in two.
type change []edit

type edit struct {
	folder *node
	name   string
	to     *node // nil = the name goes
}

func (f *FS) newNode(mode fs.FileMode) *node {
	f.mu.nodes++
	n := &node{inode: f.mu.nodes, mode: mode, time: time.Now(), links: 1}
	if mode.IsDir() {
		n.names, n.durableNames = map[string]*node{}, map[string]*node{}
	}
	return n
}

// sector is what a disk writes whole, in bytes.
const sector = 512

// Clone is the file system as it would be found after losing power now: of what is
// not synced each change of names, and each sector of each write, stays with
// probability keep. after is as New has it.
func (f *FS) Clone(keep float64, seed uint64, after func(op string)) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	rng := rand.New(rand.NewPCG(seed, 1))
	kept := map[*node]map[string]*node{}
	namesOf := func(n *node) map[string]*node {
		if kept[n] == nil {
			kept[n] = maps.Clone(n.durableNames)
		}
		return kept[n]
	}
	for _, c := range f.mu.pending {
		if rng.Float64() >= keep {
			continue
		}
		for _, e := range c {
			e.apply(namesOf(e.folder))
		}
	}
	out := New(after)
	copies := map[*node]*node{}
	var copyOf func(n *node) *node
	copyOf = func(n *node) *node {
		if c, ok := copies[n]; ok {
			c.links++
			return c
		}
		c := out.newNode(n.mode)
		copies[n] = c
		if !n.mode.IsDir() {
			text := slices.Clone(n.durable)
			for _, w := range n.writes {
				for part := range slices.Chunk(w.bytes, sector) {
					if rng.Float64() < keep {
						text = write{w.offset, part}.apply(text)
					}
					w.offset += int64(len(part))
				}
			}
			c.content, c.durable = text, slices.Clone(text)
			return c
		}
		names := namesOf(n)
		for _, name := range slices.Sorted(maps.Keys(names)) { // so that a seed gives one clone
			to := copyOf(names[name])
			c.names[name], c.durableNames[name] = to, to
		}
		return c
	}
	out.mu.root = copyOf(f.mu.root)
	return out
}

func (e edit) apply(names map[string]*node) {
	if e.to == nil {
		delete(names, e.name)
	} else {
		names[e.name] = e.to
	}
}

func (w write) apply(text []byte) []byte {
	if missing := int(w.offset) + len(w.bytes) - len(text); missing > 0 {
		text = append(text, make([]byte, missing)...)
	}
	copy(text[w.offset:], w.bytes)
	return text
}

// changeLocked does edits now, and notes them as not durable.
func (f *FS) changeLocked(edits ...edit) {
	for _, e := range edits {
		e.apply(e.folder.names)
	}
	f.mu.pending = append(f.mu.pending, edits)
}

// did ends an operation: unlock, then tell.
func (f *FS) did(op string, err *error) {
	f.mu.Unlock()
	if *err == nil && f.after != nil {
		f.after(op)
	}
}

func fail(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// walkLocked finds the node of a name, and the folder it is in.
func (f *FS) walkLocked(op, name string) (folder, n *node, last string, err error) {
	n = f.mu.root
	if name == "." {
		return nil, n, ".", nil
	}
	for rest, more := name, true; more; {
		last, rest, more = strings.Cut(rest, "/")
		if n == nil {
			return nil, nil, last, fail(op, name, syscall.ENOENT)
		}
		if !n.mode.IsDir() {
			return nil, nil, last, fail(op, name, syscall.ENOTDIR)
		}
		folder, n = n, n.names[last]
	}
	return folder, n, last, nil
}

func (f *FS) findLocked(op, name string) (*node, error) {
	_, n, _, err := f.walkLocked(op, name)
	if err == nil && n == nil {
		err = fail(op, name, syscall.ENOENT)
	}
	return n, err
}

// Root implements vfs.FS.
func (f *FS) Root() string { return "/crashfs" }

// Boot implements vfs.FS. Each Clone has another.
func (f *FS) Boot() string { return f.boot }

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked("open", name)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, node: n, name: name}, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) { return f.make(name, true, false) }

// Update implements vfs.FS.
func (f *FS) Update(name string) (vfs.File, error) { return f.make(name, false, false) }

// Append implements vfs.FS.
func (f *FS) Append(name string) (vfs.File, error) { return f.make(name, false, true) }

func (f *FS) make(name string, exclusive, appends bool) (_ vfs.File, err error) {
	f.mu.Lock()
	defer f.did("create", &err)
	folder, n, last, err := f.walkLocked("open", name)
	switch {
	case err != nil:
		return nil, err
	case n != nil && exclusive:
		return nil, fail("open", name, syscall.EEXIST)
	case n != nil && n.mode.IsDir():
		return nil, fail("open", name, syscall.EISDIR)
	case n == nil:
		n = f.newNode(0o600)
		f.changeLocked(edit{folder, last, n})
	}
	return &file{fs: f, node: n, name: name, appends: appends}, nil
}

// ReadDir implements vfs.FS.
func (f *FS) ReadDir(name string) ([]vfs.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked("open", name)
	if err == nil && !n.mode.IsDir() {
		err = fail("open", name, syscall.ENOTDIR)
	}
	if err != nil {
		return nil, err
	}
	list := make([]vfs.Info, 0, len(n.names))
	for name, n := range n.names {
		list = append(list, vfs.Info{Name: name, Mode: n.mode.Type()})
	}
	slices.SortFunc(list, func(a, b vfs.Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Lstat implements vfs.FS.
func (f *FS) Lstat(name string) (vfs.Info, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked("lstat", name)
	if err != nil {
		return vfs.Info{}, err
	}
	return n.info(name), nil
}

func (n *node) info(name string) vfs.Info {
	return vfs.Info{Name: name[strings.LastIndexByte(name, '/')+1:], Mode: n.mode, Size: int64(len(n.content)),
		ModTime: n.time, Changed: n.time, Inode: n.inode, Links: uint64(n.links), Owner: uint32(os.Geteuid())}
}

// Chmod implements vfs.FS. A loss of power takes no mode away.
func (f *FS) Chmod(name string, perm fs.FileMode) (err error) {
	f.mu.Lock()
	defer f.did("chmod", &err)
	n, err := f.findLocked("chmod", name)
	if err == nil {
		n.mode = n.mode.Type() | perm.Perm()
	}
	return err
}

// Mkdir implements vfs.FS.
func (f *FS) Mkdir(name string) (err error) {
	f.mu.Lock()
	defer f.did("mkdir", &err)
	folder, n, last, err := f.walkLocked("mkdir", name)
	if err == nil && n != nil {
		err = fail("mkdir", name, syscall.EEXIST)
	}
	if err != nil {
		return err
	}
	f.changeLocked(edit{folder, last, f.newNode(fs.ModeDir | 0o700)})
	return nil
}

// MakeRoot implements vfs.FS: the root is there.
func (f *FS) MakeRoot(func(owner uint32) bool) error { return f.Mkdir(".") }

// Rename implements vfs.FS.
func (f *FS) Rename(from, to string) (err error) {
	f.mu.Lock()
	defer f.did("rename", &err)
	oldFolder, n, oldName, err := f.walkLocked("rename", from)
	if err == nil && n == nil {
		err = fail("rename", from, syscall.ENOENT)
	}
	if err != nil {
		return err
	}
	folder, target, name, err := f.walkLocked("rename", to)
	switch {
	case err != nil:
		return err
	case target == n:
		return nil
	case target != nil && n.mode.IsDir() && !target.mode.IsDir():
		return fail("rename", to, syscall.ENOTDIR)
	case target != nil && !n.mode.IsDir() && target.mode.IsDir():
		return fail("rename", to, syscall.EISDIR)
	case target != nil && len(target.names) > 0:
		return fail("rename", to, syscall.ENOTEMPTY)
	case target != nil:
		target.links--
	}
	f.changeLocked(edit{oldFolder, oldName, nil}, edit{folder, name, n})
	return nil
}

// Exchange implements vfs.FS.
func (f *FS) Exchange(a, b string) (err error) {
	f.mu.Lock()
	defer f.did("exchange", &err)
	folderA, nodeA, nameA, err := f.walkLocked("exchange", a)
	if err == nil && nodeA == nil {
		err = fail("exchange", a, syscall.ENOENT)
	}
	if err != nil {
		return err
	}
	folderB, nodeB, nameB, err := f.walkLocked("exchange", b)
	if err == nil && nodeB == nil {
		err = fail("exchange", b, syscall.ENOENT)
	}
	if err == nil {
		f.changeLocked(edit{folderA, nameA, nodeB}, edit{folderB, nameB, nodeA})
	}
	return err
}

// Link implements vfs.FS.
func (f *FS) Link(from, to string) (err error) {
	f.mu.Lock()
	defer f.did("link", &err)
	n, err := f.findLocked("link", from)
	if err != nil {
		return err
	}
	folder, target, name, err := f.walkLocked("link", to)
	if err == nil && target != nil {
		err = fail("link", to, syscall.EEXIST)
	}
	if err != nil {
		return err
	}
	n.links++
	f.changeLocked(edit{folder, name, n})
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error { return f.RemoveIf(name, func() bool { return true }) }

// RemoveIf implements vfs.FS.
func (f *FS) RemoveIf(name string, still func() bool) (err error) {
	f.mu.Lock()
	defer f.did("remove", &err)
	folder, _, last, err := f.walkLocked("remove", name)
	if err != nil {
		return err
	}
	f.mu.Unlock()
	removes := still()
	f.mu.Lock()
	n := folder.names[last]
	switch {
	case !removes:
		return nil
	case n == nil:
		return fail("remove", name, syscall.ENOENT)
	case len(n.names) > 0:
		return fail("remove", name, syscall.ENOTEMPTY)
	}
	n.links--
	f.changeLocked(edit{folder, last, nil})
	return nil
}

// RemoveAll implements vfs.FS. Each file and folder goes by an operation of its own.
func (f *FS) RemoveAll(name string) error {
	if list, err := f.ReadDir(name); err == nil {
		for _, entry := range list {
			if err := f.RemoveAll(name + "/" + entry.Name); err != nil {
				return err
			}
		}
	}
	err := f.Remove(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) (err error) {
	f.mu.Lock()
	defer f.did("syncdir", &err)
	n, err := f.findLocked("fsync", name)
	if err != nil {
		return err
	}
	f.mu.pending = slices.DeleteFunc(f.mu.pending, func(c change) bool {
		touches := slices.ContainsFunc(c, func(e edit) bool { return e.folder == n })
		if touches {
			for _, e := range c {
				e.apply(e.folder.durableNames)
			}
		}
		return touches
	})
	return nil
}

// SyncAll implements vfs.FS.
func (f *FS) SyncAll() (err error) {
	f.mu.Lock()
	defer f.did("syncfs", &err)
	for _, c := range f.mu.pending {
		for _, e := range c {
			e.apply(e.folder.durableNames)
		}
	}
	f.mu.pending = nil
	f.mu.root.syncAll()
	return nil
}

// Notify implements vfs.FS. There is none.
func (f *FS) Notify(string) (vfs.Bell, error) { return nil, errors.ErrUnsupported }

// Free implements vfs.FS. Memory has no such bound.
func (f *FS) Free() (free, total int64, err error) { return 0, 0, errors.ErrUnsupported }

// Close does nothing: the next process has the same FS.
func (f *FS) Close() error { return nil }

func (n *node) syncAll() {
	if n.writes != nil {
		n.durable, n.writes = slices.Clone(n.content), nil
	}
	for _, inside := range n.names {
		inside.syncAll()
	}
}
