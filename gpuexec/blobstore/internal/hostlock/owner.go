package hostlock

import (
	"errors"
	"io/fs"

	"github.com/kiln-cache/kiln/internal/vfs"
)

// Owners show which processes live, so that nobody clears away what one of them is
// writing, nor waits until what a dead one has left is old. Each holds the lock of a
// file. Its name is from Unique, and so begins as those of all files that the process
// stages. Owners are safe for concurrent use, on a file system with advisory locks.
type Owners struct {
	FS     vfs.FS
	Folder string // must exist
}

// Owner is the file of one who lives. End it with Leave.
type Owner struct {
	owners Owners
	name   string
	file   vfs.File
}

// coming begins the name of a file that is not locked yet. It names no process: who has
// such a file is not dead for that, and if it died, the file goes as a dead owner's does.
const coming = "new-"

// Enter makes the file of a name. It is locked before it gets its name.
func (o Owners) Enter(name string) (*Owner, error) {
	for again := 0; ; again++ {
		owner, err := o.enter(name)
		if !errors.Is(err, fs.ErrNotExist) && err != errLooked || again == 16 {
			return owner, err
		} // somebody took it for a dead owner's before it was locked, or just looks
	}
}

var errLooked = errors.New("others have looked at each new file of this owner")

func (o Owners) enter(name string) (*Owner, error) {
	staged := o.Folder + "/" + coming + name
	f, err := o.FS.Create(staged)
	if err != nil {
		return nil, err
	}
	locked, err := f.TryLock()
	if err == nil && !locked {
		err = errLooked
	}
	if err == nil {
		err = o.FS.Rename(staged, o.Folder+"/"+name)
	}
	if err != nil {
		_ = o.FS.Remove(staged)
		_ = f.Close() // which ends the lock
		return nil, err
	}
	return &Owner{o, name, f}, nil
}

// There reports whether the file still has its name.
func (o *Owner) There() bool {
	info, err := o.file.Stat()
	return err == nil && info.Links > 0
}

// Leave removes the file.
func (o *Owner) Leave() error {
	err := o.owners.Forget(o.name)
	return errors.Join(err, o.file.Close())
}

// Forget removes the file of a dead owner.
func (o Owners) Forget(name string) error {
	if err := o.FS.Remove(o.Folder + "/" + name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Living tells by name whether an owner lives, and by Process whether any of its does.
// Who has no file is not among them.
func (o Owners) Living() (map[string]bool, error) {
	living := map[string]bool{}
	list, err := o.FS.ReadDir(o.Folder)
	for _, entry := range list {
		f, err := o.FS.Open(o.Folder + "/" + entry.Name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it left a moment ago
		}
		lives := err != nil || Own(entry.Name) // nobody is dead because this process has no descriptors
		if err == nil {
			free, err := f.TryLock()
			lives = lives || !free || err != nil
			_ = f.Close() // it was only looked at
		}
		living[entry.Name] = lives
		living[Process(entry.Name)] = living[Process(entry.Name)] || lives
	}
	return living, err
}

// Process is what all names have in common that are from Unique in one process.
func Process(name string) string { return name[:min(len(name), len(own))] }
