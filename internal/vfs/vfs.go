package vfs

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
	"time"
)

// Info describes a file.
type Info struct {
	Name    string // last element
	Mode    fs.FileMode
	Size    int64 // bytes
	ModTime time.Time
	Changed time.Time // by the kernel, of content, mode, names or ModTime: nobody can set it
	Inode   uint64    // unique among the files that exist
	Links   uint64    // names it has; 0 = removed while open
	Owner   uint32    // user id
}

// Regular reports whether it is a plain file.
func (i Info) Regular() bool { return i.Mode.IsRegular() }

// FS is a file system below one root.
type FS interface {
	// Root is the folder's absolute path, for messages.
	Root() string
	// Boot names the time since the machine was started. What was written under another
	// name, and was not synced, may be lost. Empty = not known.
	Boot() string
	// Open opens for reading. The name may be that of a FIFO or device: see Stat.
	Open(name string) (File, error)
	// Create makes a new file, mode 0600, for reading and writing; fs.ErrExist if
	// the name is taken.
	Create(name string) (File, error)
	// Update opens a plain file for reading and writing and makes it if missing.
	Update(name string) (File, error)
	// Append is Update for a file whose writes go to its end, wherever that is by then: no
	// writer takes what another one has written.
	Append(name string) (File, error)
	// ReadDir lists a folder, sorted by name. Only Name and the type bits of Mode
	// of an Info are set.
	ReadDir(name string) ([]Info, error)
	// Lstat describes a name itself, not the target of a link.
	Lstat(name string) (Info, error)
	// Chmod gives a file other permissions. It follows no link.
	Chmod(name string, perm fs.FileMode) error
	// Mkdir makes a folder, mode 0700. "." is MakeRoot without an heir.
	Mkdir(name string) error
	// MakeRoot makes the root, mode 0700, with all folders above it that are missing. Where
	// the user root makes them in the folder of a user who is an heir, they belong to that user.
	MakeRoot(heir func(owner uint32) bool) error
	// Rename moves a file or folder in one step. A folder replaces none but an
	// empty one.
	Rename(from, to string) error
	// Exchange gives two names each what the other has, in one step. The error is
	// errors.ErrUnsupported where the system cannot.
	Exchange(a, b string) error
	// Link gives a file a second name; fs.ErrExist if it is taken.
	Link(from, to string) error
	// Remove removes a file or an empty folder, RemoveAll a folder with its content.
	Remove(name string) error
	RemoveAll(name string) error
	// RemoveIf is Remove in the folder that is there before it asks still, whatever has the
	// folder's name by then. Where still says no it removes nothing, and gives no error.
	RemoveIf(name string, still func() bool) error
	// SyncDir makes changes of the names in a folder survive a loss of power.
	SyncDir(name string) error
	// SyncAll makes all that was written to the file system before survive a loss of
	// power, also what other programs have written, for which it waits. The error is
	// errors.ErrUnsupported where the system cannot do that reliably.
	SyncAll() error
	// Notify gives a Bell of a file that exists. The error is errors.ErrUnsupported where
	// the system has none.
	Notify(name string) (Bell, error)
	// Free gives the bytes of the file system that this user may still write, and all
	// that it has. The error is errors.ErrUnsupported where the system does not tell.
	Free() (free, total int64, err error)
	// Close gives up the root when the calls under way have ended. Later calls answer
	// fs.ErrClosed; open Files stay.
	Close() error
}

// File is an open file.
type File interface {
	io.ReaderAt // op "read"
	io.WriterAt // op "write"
	io.Closer
	Stat() (Info, error)
	// Sync makes the content survive a loss of power, and SyncDir its name.
	Sync() error
	// TryLock takes the exclusive advisory lock of the file, which is held until Close
	// or the end of the process. It is false if another File has the lock.
	TryLock() (bool, error)
	// Lock takes it too, and waits for it: nothing else ends the wait. Those that wait have
	// it in the order in which they asked.
	Lock() error
}

// Mapper is a File that can be mapped.
type Mapper interface {
	// Map maps the first bytes of the file, for reading, until unmap is called: the file may
	// be closed before. All that map a file share its pages. To read one that is gone,
	// because the file was cut or its disk failed, is a fault at that address.
	Map(bytes int64) (content []byte, unmap func(), err error)
}

// Bell tells when a file that was open for writing has been closed, also by the end of its
// process, or was removed: on this machine, so whoever waits looks now and then as well.
type Bell interface {
	Wait() error // until it rings, or until Close, which is an error
	io.Closer
}

// ReadFile reads a plain file of at most most bytes. The error is fs.ErrInvalid for
// a name that is no plain file, ErrTooLong for a longer file.
func ReadFile(fsys FS, name string, most int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Regular():
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	case info.Size > most:
		return nil, &fs.PathError{Op: "read", Path: name, Err: ErrTooLong}
	}
	text := make([]byte, info.Size)
	n, err := f.ReadAt(text, 0)
	if err == io.EOF { // it was shortened
		err = nil
	}
	return text[:n], err
}

// ErrTooLong says that a file has more bytes than its reader accepts.
var ErrTooLong = tooLong{}

type tooLong struct{}

func (tooLong) Error() string { return "more bytes than allowed" }

// Unsafe is the error of opening a file or folder that another user owns or can write.
type Unsafe struct {
	Field string // "owner" or "mode"
}

func (u *Unsafe) Error() string { return "another user may have written it: wrong " + u.Field }

// Unwrap gives fs.ErrPermission.
func (u *Unsafe) Unwrap() error { return fs.ErrPermission }

// NoSync reports whether an error of SyncDir says that the file system cannot sync
// folders at all.
func NoSync(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)
}

// WriteNew makes a new file of the parts, and syncs it if sync is set.
func WriteNew(fsys FS, name string, sync bool, parts ...[]byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	var offset int64
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		if _, err = f.WriteAt(part, offset); err != nil {
			break
		}
		offset += int64(len(part))
	}
	if err == nil && sync {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}
