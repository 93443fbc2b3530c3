package vfs

import (
	"io"
	"io/fs"
	"time"
)

// Info is what is known of a file without opening it.
type Info struct {
	Name    string // last element
	Mode    fs.FileMode
	Size    int64 // bytes
	ModTime time.Time
	Inode   uint64 // unique among the files that exist
	Links   uint64 // names it has; 0 = removed while open
	Owner   uint32 // user id
}

// Regular reports whether it is a plain file.
func (i Info) Regular() bool { return i.Mode.IsRegular() }

// FS is a file system below one root.
type FS interface {
	// Root is the folder's absolute path, for messages.
	Root() string
	// Open opens for reading. The caller looks at Stat: it may be no plain file.
	Open(name string) (File, error)
	// Create makes a new file, mode 0600, for reading and writing; fs.ErrExist if
	// the name is taken.
	Create(name string) (File, error)
	// Update opens a plain file for reading and writing and makes it if missing.
	Update(name string) (File, error)
	// ReadDir lists a folder, sorted by name. Only Name and the type bits of Mode
	// of an Info are set.
	ReadDir(name string) ([]Info, error)
	// Lstat looks at a name itself, not at what it links to.
	Lstat(name string) (Info, error)
	// Mkdir makes a folder, mode 0700. "." is the root itself, for which the folders
	// on the way are made as well.
	Mkdir(name string) error
	// Rename moves a file or folder in one step. A folder replaces none but an
	// empty one.
	Rename(from, to string) error
	// Link gives a file a second name; fs.ErrExist if it is taken.
	Link(from, to string) error
	// Remove removes a file or an empty folder, RemoveAll whatever there is.
	Remove(name string) error
	RemoveAll(name string) error
	// SyncDir makes what happened to the names in a folder survive a power loss.
	SyncDir(name string) error
}

// File is an open file.
type File interface {
	io.ReaderAt // op "read"
	io.WriterAt // op "write"
	io.Closer
	Stat() (Info, error)
	// Sync makes the content survive a power loss; its name is SyncDir's affair.
	Sync() error
	// TryLock takes the exclusive advisory lock of the file, held until Close or
	// the end of the process. False = somebody else has it.
	TryLock() (bool, error)
}

// ReadFile gives the whole of a plain file that has no more than most bytes.
// What is no plain file is fs.ErrInvalid, a longer one ErrTooLong.
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
	if err == io.EOF { // shortened since
		err = nil
	}
	return text[:n], err
}

// ErrTooLong is a file that has more bytes than its reader is ready to take.
var ErrTooLong = tooLong{}

type tooLong struct{}

func (tooLong) Error() string { return "more bytes than allowed" }

// WriteNew makes a new file of that content.
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
