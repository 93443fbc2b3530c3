package self

import (
	"fmt"
	"io"
	"os"
	"reflect"
	"syscall"
)

func library() (mapping, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return mapping{}, err
	}
	return find(string(maps), uint64(reflect.ValueOf(library).Pointer()))
}

func openLibrary() (io.ReadCloser, error) {
	m, err := library()
	if err != nil {
		return nil, err
	}
	return m.open()
}

// open opens the file if it is still the one that is in memory.
func (m mapping) open() (io.ReadCloser, error) {
	f, err := os.Open(m.path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); !ok || stat.Ino != m.inode {
			err = fmt.Errorf("%s was replaced since it was loaded", m.path)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}
