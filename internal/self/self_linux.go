package self

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// first reports whether this package was initialised on the first thread of the process. Go
// runs all init functions of an executable there, and those of a library that C has on
// another one.
var first = syscall.Gettid() == os.Getpid()

// code is the mapping that has this code.
func code() (mapping, error) { return at(uint64(reflect.ValueOf(at).Pointer())) }

func at(address uint64) (mapping, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return mapping{}, err
	}
	return find(string(maps), address)
}

// openAt opens the file at path if it is still the one that is in memory. Only two mappings can be
// compared: some file systems give a mapped file another number than an open one.
func (m mapping) openAt(path string) (io.ReadCloser, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not wait where there is a pipe
	if err != nil {
		return nil, fmt.Errorf("the file that Kiln's code was loaded from is gone, or was replaced: %w", err)
	}
	again, err := syscall.Mmap(int(f.Fd()), 0, 1, syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err == nil {
		var now mapping
		now, err = at(uint64(uintptr(unsafe.Pointer(&again[0]))))
		if err == nil && now != m {
			err = fmt.Errorf("%s was replaced since it was loaded", path)
		}
		_ = syscall.Munmap(again)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// trusted refuses a program that somebody else may have written than root, this user, or
// whoever may write the library, which is trusted already.
func trusted(program, library string) error {
	var its, folder, lib syscall.Stat_t
	if err := errors.Join(syscall.Stat(program, &its), syscall.Stat(filepath.Dir(program), &folder)); err != nil {
		return err
	}
	_ = syscall.Stat(library, &lib) // where it is gone, it counts as root's, and as nobody else's to write
	known := lib.Mode & 0o022
	if its.Gid != lib.Gid {
		known &^= 0o020
	}
	switch {
	case its.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return errors.New("it is no file")
	case its.Uid != 0 && int(its.Uid) != os.Geteuid() && its.Uid != lib.Uid:
		return fmt.Errorf("it belongs to user %d: want root, this user or the owner of %s", its.Uid, filepath.Base(library))
	case its.Mode&0o022&^known != 0:
		return fmt.Errorf("others may write it who may not write %s: take that right away", filepath.Base(library))
	case folder.Mode&0o002 != 0 && folder.Mode&syscall.S_ISVTX == 0:
		return errors.New("anybody may write to its folder: take that right away")
	}
	return nil
}

// Raised reports whether this program has more rights than whoever started it: by the bits of
// its file, or its capabilities. Its arguments and environment are a stranger's then.
func Raised() bool {
	const secure = 23 // AT_SECURE
	vector, _ := unix.Auxv()
	for _, pair := range vector {
		if pair[0] == secure {
			return pair[1] != 0
		}
	}
	return os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid()
}
