package dl

import (
	"debug/elf"
	"fmt"
	"os"
)

// Whole is an error where the file of a library is cut short: the system's loader would map what
// is not there, and its first look at that ends the process. A name that is no file of a library
// is the loader's to judge.
func Whole(path string) error {
	about, err := os.Stat(path)
	if err != nil || !about.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	lib, err := elf.NewFile(f)
	if err != nil {
		return fmt.Errorf("%s of %d bytes is no whole library: %w", path, about.Size(), err)
	}
	end := uint64(0)
	for _, p := range lib.Progs {
		end = max(end, p.Off+p.Filesz)
	}
	for _, s := range lib.Sections {
		if s.Type != elf.SHT_NOBITS {
			end = max(end, s.Offset+s.FileSize)
		}
	}
	if size := uint64(about.Size()); size < end {
		return fmt.Errorf("%s is cut short: it has %d bytes of at least %d", path, size, end)
	}
	return nil
}
