package vfs

import "errors"

// Watch gives fsys with op called before each operation. op gets one of the names
// "open", "read", "map", "write", "sync", "syncdir", "rename" and "mkdir". If it returns an
// error the operation fails with it and does not take place. Creating and updating a
// file are "open", listing a folder is "open" and "read", a second name and an
// exchange are "rename", SyncAll is "sync".
func Watch(fsys FS, op func(string) error) FS { return watched{fsys, op} }

type watched struct {
	FS
	op func(string) error
}

func (w watched) failed(op, name string) error { return wrapAny(op, name, w.op(op)) }

func wrapAny(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Fault{Op: op, Name: name, Err: err}
}

// Fault is an error that a Watch function asked for.
type Fault struct {
	Op, Name string
	Err      error
}

func (f *Fault) Error() string { return f.Op + " " + f.Name + ": " + f.Err.Error() }

// Unwrap gives the error that the function returned.
func (f *Fault) Unwrap() error { return f.Err }

func (w watched) opened(name string, open func(string) (File, error)) (File, error) {
	if err := w.failed("open", name); err != nil {
		return nil, err
	}
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	return watchedFile{f, w, name}, nil
}

func (w watched) Open(name string) (File, error)   { return w.opened(name, w.FS.Open) }
func (w watched) Create(name string) (File, error) { return w.opened(name, w.FS.Create) }
func (w watched) Update(name string) (File, error) { return w.opened(name, w.FS.Update) }
func (w watched) Append(name string) (File, error) { return w.opened(name, w.FS.Append) }

func (w watched) ReadDir(name string) ([]Info, error) {
	for _, op := range []string{"open", "read"} {
		if err := w.failed(op, name); err != nil {
			return nil, err
		}
	}
	return w.FS.ReadDir(name)
}

func (w watched) Mkdir(name string) error {
	if err := w.failed("mkdir", name); err != nil {
		return err
	}
	return w.FS.Mkdir(name)
}

func (w watched) MakeRoot(heir func(owner uint32) bool) error {
	if err := w.failed("mkdir", "."); err != nil {
		return err
	}
	return w.FS.MakeRoot(heir)
}

func (w watched) Rename(from, to string) error {
	if err := w.failed("rename", from); err != nil {
		return err
	}
	return w.FS.Rename(from, to)
}

func (w watched) Exchange(a, b string) error {
	if err := w.failed("rename", a); err != nil {
		return err
	}
	return w.FS.Exchange(a, b)
}

func (w watched) Link(from, to string) error {
	if err := w.failed("rename", from); err != nil {
		return err
	}
	return w.FS.Link(from, to)
}

func (w watched) SyncDir(name string) error {
	if err := w.failed("syncdir", name); err != nil {
		return err
	}
	return w.FS.SyncDir(name)
}

func (w watched) SyncAll() error {
	if err := w.failed("sync", "."); err != nil {
		return err
	}
	return w.FS.SyncAll()
}

type watchedFile struct {
	File
	w    watched
	name string
}

func (f watchedFile) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.w.failed("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, offset)
}

func (f watchedFile) Map(bytes int64) ([]byte, func(), error) {
	m, can := f.File.(Mapper)
	if !can {
		return nil, nil, errors.ErrUnsupported
	}
	if err := f.w.failed("map", f.name); err != nil {
		return nil, nil, err
	}
	return m.Map(bytes)
}

func (f watchedFile) WriteAt(p []byte, offset int64) (int, error) {
	if err := f.w.failed("write", f.name); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, offset)
}

func (f watchedFile) Sync() error {
	if err := f.w.failed("sync", f.name); err != nil {
		return err
	}
	return f.File.Sync()
}
