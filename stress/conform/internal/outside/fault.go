package outside

import (
	"slices"
	"sync"
	"syscall"
)

// fileOps are the file operations that can be counted and made to fail.
var fileOps = []string{"open", "read", "write", "sync", "syncdir", "rename", "mkdir"}

var errnos = map[string]syscall.Errno{
	"ENOSPC": syscall.ENOSPC, "EROFS": syscall.EROFS, "EIO": syscall.EIO, "EACCES": syscall.EACCES, "ESTALE": syscall.ESTALE,
}

// Faults counts the components' file operations and fails them on demand. The
// zero value fails nothing. Safe for concurrent use.
type Faults struct {
	mu struct {
		sync.Mutex
		set    map[string]syscall.Errno
		counts map[string]int
	}
}

// Op notes one operation and gives the error it has to fail with, or nil.
// Components' file systems call it before each operation.
func (f *Faults) Op(op string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.counts == nil {
		f.mu.counts = map[string]int{}
	}
	f.mu.counts[op]++
	if err, ok := f.mu.set[op]; ok {
		return err
	}
	return nil
}

// Set makes an operation fail with the error of that name from now on.
func (f *Faults) Set(op, errno string) error {
	err, ok := errnos[errno]
	if !ok || !slices.Contains(fileOps, op) {
		return invalid("fault", "%s=%s: want one of %v and ENOSPC, EROFS, EIO, EACCES or ESTALE", op, errno, fileOps)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.set == nil {
		f.mu.set = map[string]syscall.Errno{}
	}
	f.mu.set[op] = err
	return nil
}

// Off ends all faults.
func (f *Faults) Off() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.set = nil
}

// Count is how many operations there were since the last Reset.
func (f *Faults) Count(op string) (int, error) {
	if !slices.Contains(fileOps, op) {
		return 0, invalid("io", "%s: want one of %v", op, fileOps)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.counts[op], nil
}

// Reset sets all counts to zero.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.counts = nil
}

// Driver is what the script tells the fake Vulkan driver to do. The zero value
// does everything right. Safe for concurrent use.
type Driver struct {
	mu struct {
		sync.Mutex
		fails map[string]bool
		blob  *string
		calls map[string]int
	}
}

var driverSettings = map[string]string{"create": "refuse", "merge": "fail", "deliver": "fail"}

// Set changes one setting: create=refuse, merge=fail, deliver=fail, blob=TEXT.
func (d *Driver) Set(name, value string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "blob" {
		d.mu.blob = &value
		return nil
	}
	if want, ok := driverSettings[name]; !ok || value != want {
		return invalid("driver", "%s=%s: want create=refuse, merge=fail, deliver=fail or blob=TEXT", name, value)
	}
	if d.mu.fails == nil {
		d.mu.fails = map[string]bool{}
	}
	d.mu.fails[name] = true
	return nil
}

// OK ends all failures.
func (d *Driver) OK() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.fails = nil
}

// Call notes a call (create, merge or deliver) and tells whether it has to fail.
func (d *Driver) Call(name string) (fails bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.calls == nil {
		d.mu.calls = map[string]int{}
	}
	d.mu.calls[name]++
	return d.mu.fails[name]
}

// Calls is how often Call was called with that name.
func (d *Driver) Calls(name string) (int, error) {
	if _, ok := driverSettings[name]; !ok {
		return 0, invalid("driver calls", "%s: want create, merge or deliver", name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.calls[name], nil
}

// Blob is what the driver's next blob carries, if the script has said so.
func (d *Driver) Blob() (text string, set bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.blob == nil {
		return "", false
	}
	return *d.mu.blob, true
}
