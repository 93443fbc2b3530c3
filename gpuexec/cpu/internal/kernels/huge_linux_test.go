package kernels

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"
)

// The memory of an engine asks for huge pages, where the system has them.
func TestMemoryAsksForHugePages(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("this system has no huge pages")
	}
	memory, err := reserve(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer release(memory)
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	inside, at := false, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory))))
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil {
			inside = from <= at && at < to
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && inside {
			if !strings.Contains(flags, " hg") {
				t.Errorf("it has the flags %s", flags)
			}
			return
		}
	}
	t.Error("the memory is in no mapping")
}
