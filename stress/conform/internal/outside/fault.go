package outside

import (
	"slices"
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
	set    Register[string, syscall.Errno]
	counts Counts
}

// Op notes one operation and gives the error it has to fail with, or nil.
// Components' file systems call it before each operation.
func (f *Faults) Op(op string) error {
	f.counts.Add(op)
	if err, ok := f.set.Lookup(op); ok {
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
	f.set.Set(op, err)
	return nil
}

// Off ends all faults.
func (f *Faults) Off() { f.set.Empty() }

// Count is how many operations there were since the last Reset.
func (f *Faults) Count(op string) (int, error) {
	if !slices.Contains(fileOps, op) {
		return 0, invalid("io", "%s: want one of %v", op, fileOps)
	}
	return f.counts.Get(op), nil
}

// Reset sets all counts to zero.
func (f *Faults) Reset() { f.counts.Empty() }

// Driver is what the script tells the fake Vulkan driver to do. The zero value
// does everything right. Safe for concurrent use.
type Driver struct {
	told  Register[string, string]
	calls Counts
}

var driverSettings = map[string]string{"create": "refuse", "merge": "fail", "deliver": "fail"}

// Set changes one setting: create=refuse, merge=fail, deliver=fail, blob=TEXT.
func (d *Driver) Set(name, value string) error {
	if want, ok := driverSettings[name]; name != "blob" && (!ok || value != want) {
		return invalid("driver", "%s=%s: want create=refuse, merge=fail, deliver=fail or blob=TEXT", name, value)
	}
	d.told.Set(name, value)
	return nil
}

// OK ends all failures.
func (d *Driver) OK() {
	for name := range driverSettings {
		d.told.Take(name)
	}
}

// Call notes a call (create, merge or deliver) and tells whether it has to fail.
func (d *Driver) Call(name string) (fails bool) {
	d.calls.Add(name)
	_, fails = d.told.Lookup(name)
	return fails
}

// Calls is how often Call was called with that name.
func (d *Driver) Calls(name string) (int, error) {
	if _, ok := driverSettings[name]; !ok {
		return 0, invalid("driver calls", "%s: want create, merge or deliver", name)
	}
	return d.calls.Get(name), nil
}

// Blob is what the driver's next blob carries, if the script has said so.
func (d *Driver) Blob() (text string, set bool) { return d.told.Lookup("blob") }
