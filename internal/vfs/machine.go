package vfs

// Machine gives the function that opens a folder of this machine's file system.
// The error is fault.ErrUnsupported on a system that has no FS, as Windows.
func Machine() (func(root string) FS, error) { return machine() }
