package tensorfile

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// K5: files of two images that are only read have one inode, size and time if they were built
// alike, and other bytes: the store would give one's weights to the other. They have no stamp.
func TestImagesHaveNoStamp(t *testing.T) {
	now := time.Unix(1000, 0)
	st := unix.Stat_t{Dev: 7, Ino: 12, Size: 99, Mtim: unix.Timespec{Sec: 1}, Ctim: unix.Timespec{Sec: 1}}
	if got := stampOf(now, &st); got != "" {
		t.Errorf("stamp %q of a file that was changed at a whole second", got)
	}
	st.Ctim.Nsec = 1
	if stampOf(now, &st) == "" {
		t.Error("a file whose change has a time to the nanosecond has no stamp")
	}
}
