package blobstore

import (
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/internal/frame"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// folder is a directory in the layout of SPEC P2: the writable one or a base.
type folder struct {
	vfs.FS
	base   bool
	hollow func(name string) // if not nil, a scan tells it of buckets without slots and of slots without files
}

// visit is called for the place of each entry.
type visit func(place string, f files) error

// files are those of one entry.
type files struct {
	key, kernel int64 // bytes; -1 = it is missing or no plain file
	stamp       stamp // of kernel.bin
}

// stamp tells a file from others that have its name before or after it.
type stamp struct {
	inode uint64
	time  int64 // when it was written, in nanoseconds since 1970
}

func stampOf(info vfs.Info) stamp { return stamp{info.Inode, info.ModTime.UnixNano()} }

// stampOf is that of a name, zero where nothing has it.
func (f folder) stampOf(name string) stamp {
	info, err := f.Lstat(name)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}

// stampOfFile is that of a plain file.
func (f folder) stampOfFile(name string) stamp {
	info, err := f.Lstat(name)
	if err != nil || !info.Regular() {
		return stamp{}
	}
	return stampOf(info)
}

// scan visits all entries. It passes over names that no store makes: buckets and
// slots that are no decimal number, links, and files in the place of folders. It
// calls skipped for the folder of a backend or bucket that may not be listed. Without each it
// looks for these alone.
func (f folder) scan(each visit, skipped func(name string, err error)) error {
	backends, err := f.ReadDir(".")
	if err != nil {
		return err
	}
	for _, b := range backends {
		if !b.Mode.IsDir() || !validBackend(b.Name) {
			continue
		}
		if err := f.scanBackend(b.Name, each, skipped); err != nil {
			return err
		}
	}
	return nil
}

func (f folder) scanBackend(backend string, each visit, skipped func(string, error)) error {
	buckets, err := f.ReadDir(backend)
	if err != nil {
		return pass(backend, err, skipped)
	}
	for _, bucket := range buckets {
		if !bucket.Mode.IsDir() || !isNumber(bucket.Name) {
			continue
		}
		if err := f.scanBucket(backend+"/"+bucket.Name, each, skipped); err != nil {
			return err
		}
	}
	return nil
}

// isStore reports whether the folder has been a store: its lock has a file, or it has an
// entry. Somebody else may have a folder or a size.txt of that name; with both it is an
// empty store of an older version, and a lock that may not be listed is another user's.
func (f folder) isStore() bool {
	_, there := f.Lstat(leaseDir)
	list, err := f.ReadDir(lockDir)
	ours := func(i vfs.Info) bool { return isNumber(i.Name) && i.Mode.IsRegular() }
	if slices.ContainsFunc(list, ours) || err == nil && f.readSize() != unknownSize || there == nil && errors.Is(err, fs.ErrPermission) {
		return true
	}
	found := errors.New("found")
	err = f.scan(func(string, files) error { return found }, func(string, error) {})
	return errors.Is(err, found)
}

// skipped counts a folder that was left out of a scan.
func (s *Store) skipped(_ string, err error) { s.degraded("list", err) }

// pass is nil if a scan can go on without a folder that could not be listed.
func pass(name string, err error, skipped func(string, error)) error {
	switch {
	case isGone(err):
		return nil
	case errors.Is(err, fs.ErrPermission):
		skipped(name, err)
		return nil
	}
	return err
}

func (f folder) scanBucket(bucket string, each visit, skipped func(string, error)) error {
	slots, err := f.slots(bucket)
	if err != nil {
		return pass(bucket, err, skipped)
	}
	if len(slots) == 0 && f.hollow != nil {
		f.hollow(bucket)
	}
	for _, slot := range slots {
		if !slot.ours || each == nil {
			continue
		}
		place := bucket + "/" + slot.name
		files, there, err := f.look(place)
		if err != nil {
			files, there, err = f.look(place)
		}
		if err != nil { // it would count as empty
			return err
		}
		if !there {
			if f.hollow != nil {
				f.hollow(place)
			}
			continue
		}
		if err := each(place, files); err != nil {
			return err
		}
	}
	return nil
}

// files looks at the files of an entry. there is false only if both names are known to
// be missing.
func (f folder) files(place string) (found files, there bool) {
	found, there, _ = f.look(place)
	return found, there
}

// look is files with an error where a file was not seen that may be there. It is nil if the
// file is missing, is none, or may not be looked at, which Verify tells.
func (f folder) look(place string) (found files, there bool, unseen error) {
	look := func(name string) (int64, stamp) {
		info, err := f.Lstat(place + "/" + name)
		gone := isGone(err) || isForeign(err)
		there = there || !gone
		if err != nil && !gone && !errors.Is(err, fs.ErrPermission) {
			unseen = err
		}
		if err != nil || !info.Regular() {
			return -1, stamp{}
		}
		return info.Size, stampOf(info)
	}
	found.key, _ = look(keyFile)
	found.kernel, found.stamp = look(kernelFile)
	return found, there, unseen
}

// outline tells an entry from others that have its place before or after it, without
// reading it.
type outline struct {
	name   string // of the slot
	folder stamp
	files  files
}

func (f folder) outline(place string) outline {
	o := outline{name: path.Base(place)}
	o.folder = f.stampOf(place)
	o.files, _ = f.files(place)
	return o
}

// outlines lists those of all slots of a bucket.
func (f folder) outlines(bucket string) (list []outline, err error) {
	slots, err := f.slots(bucket)
	for _, slot := range slots {
		list = append(list, f.outline(bucket+"/"+slot.name))
	}
	if isGone(err) {
		err = nil
	}
	return list, err
}

// slot is a name in a bucket that is a number. ours reports whether it can be an
// entry; if not, the number is taken all the same.
type slot struct {
	name string
	n    uint64
	ours bool
}

// slots lists a bucket by number.
func (f folder) slots(bucket string) ([]slot, error) {
	list, err := f.ReadDir(bucket)
	if err != nil {
		return nil, err
	}
	slots := make([]slot, 0, len(list))
	for _, entry := range list {
		if !isNumber(entry.Name) {
			continue
		}
		n, _ := strconv.ParseUint(entry.Name, 10, 64)
		slots = append(slots, slot{entry.Name, n, entry.Mode.IsDir()})
	}
	for i := 1; i < len(slots); i++ { // insertion: nearly always one slot, and the names come nearly sorted
		for k := i; k > 0 && slots[k].n < slots[k-1].n; k-- {
			slots[k], slots[k-1] = slots[k-1], slots[k]
		}
	}
	return slots, nil
}

// carries reports whether a bucket has an entry of that digest, in hexadecimal. It is
// true as well for a bucket that cannot be read.
func (f folder) carries(bucket, digest string) bool {
	slots, err := f.slots(bucket)
	if err != nil {
		return !isGone(err) && !isForeign(err)
	}
	for _, slot := range slots {
		found, err := f.digestAt(bucket + "/" + slot.name)
		if err == nil && hex.EncodeToString(found[:]) == digest || err != nil && !isGone(err) && !isForeign(err) {
			return true
		}
	}
	return false
}

// digestAt reads the digest that an entry has, and no more of it; that of a file without one is zero.
func (f folder) digestAt(place string) (digest [32]byte, err error) {
	file, err := f.Open(place + "/" + kernelFile)
	if err != nil {
		return digest, err
	}
	defer file.Close()
	head := make([]byte, frame.Preamble)
	if short, err := readAll(file, head, 0); err != nil || short {
		return digest, err
	}
	return frame.DigestOf(head), nil
}

// lowestFree is the smallest number that no slot has.
func lowestFree(slots []slot) uint64 {
	var n uint64
	for _, s := range slots {
		if s.n != n {
			break
		}
		n++
	}
	return n
}

// isNumber reports whether a name is a decimal uint64 as strconv writes it.
func isNumber(name string) bool {
	_, err := strconv.ParseUint(name, 10, 64)
	return err == nil && (name[0] != '0' || len(name) == 1)
}

// backendOf and bucketOf give the parts of a place.
func backendOf(place string) string { b, _, _ := strings.Cut(place, "/"); return b }
func bucketOf(place string) string  { return path.Base(path.Dir(place)) }

// meta reads the creation time and cost of an entry, unverified, for the choice of
// victims. An entry that cannot be read has the time of its file, and cost 0.
func (f folder) meta(r *record) {
	defer r.learned()
	file, err := f.Open(r.place + "/" + kernelFile)
	if err != nil {
		return
	}
	defer file.Close()
	head := make([]byte, frame.MetaSize)
	n, err := file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return
	}
	if e, ok := frame.ReadMeta(head[:n]); ok {
		r.created, r.cost = e.Created.UnixNano(), e.Cost
		return
	}
	if info, err := file.Stat(); err == nil {
		r.created = info.ModTime.UnixNano()
	}
}
