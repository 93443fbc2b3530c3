package tensorfile

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
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
	other := st
	other.Dev = 8
	if stampOf(now, &other) != stampOf(now, &st) {
		t.Error("the device is in the stamp, which a container has another one of each time")
	}
}

// K5: tensors of files with one stamp are told apart by their bytes, at both ends of each piece.
func TestState(t *testing.T) {
	const n = pieceBytes + 3*sample
	state := func(at int) string {
		t.Helper()
		file := append([]byte("\x48\x00\x00\x00\x00\x00\x00\x00"), fmt.Sprintf("%-72s", fmt.Sprintf(`{"x":{"dtype":"F32","shape":[%d],"data_offsets":[0,%d]}}`, n/4, n))...)
		file = append(file, make([]byte, n)...)
		if at >= 0 {
			file[80+at] = 1
		}
		f, err := Read("w", file)
		if err != nil {
			t.Fatal(err)
		}
		if none, err := f.State(t.Context(), "x"); none != "" || err != nil {
			t.Errorf("state %q, %v of a file without a stamp", none, err)
		}
		f.stamp = "stamp"
		s, err := f.State(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	zeros := state(-1)
	if zeros != state(-1) || zeros != state(sample) {
		t.Error("two states of the same sample")
	}
	for _, at := range []int{0, sample - 1, pieceBytes - sample, pieceBytes - 1, pieceBytes, n - sample, n - 1} {
		if state(at) == zeros {
			t.Errorf("byte %d is in no sample", at)
		}
	}
	const two = `{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`
	f, err := Read("w", []byte("\x6b\x00\x00\x00\x00\x00\x00\x00"+two+"abcdabcd"))
	if err != nil {
		t.Fatal(err)
	}
	f.stamp = "stamp"
	x, errX := f.State(t.Context(), "x")
	y, errY := f.State(t.Context(), "y")
	if errX != nil || errY != nil || x == y {
		t.Errorf("%q, %v and %q, %v of two tensors", x, errX, y, errY)
	}
	if _, err := f.State(t.Context(), "z"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("%v of no tensor", err)
	}
}
