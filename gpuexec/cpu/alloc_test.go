package cpu

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/heap"
)

// What can never fit is not told to release buffers; what others have taken is.
func TestAllocSaysWhatToDo(t *testing.T) {
	const size = 1 << 16
	d := &device{memory: make([]byte, size), heap: heap.New(size, alignment)}
	alloc := func(bytes int64) (why string) {
		_, err := d.Alloc(bytes)
		if err != nil && !errors.Is(err, fault.ErrTooLarge) {
			t.Errorf("%d bytes: %v, want ErrTooLarge", bytes, err)
		}
		return fmt.Sprint(err)
	}
	const release = "release buffers"
	for _, bytes := range []int64{size - alignment + 1, size, 1 << 40, math.MaxInt64} {
		if why := alloc(bytes); !strings.Contains(why, "has 65472 in all") || strings.Contains(why, release) {
			t.Errorf("%d bytes: %s", bytes, why)
		}
	}
	if why := alloc(size - alignment); why != "<nil>" {
		t.Errorf("all there is: %s", why)
	}
	if why := alloc(1); !strings.Contains(why, release) {
		t.Errorf("one byte more: %s, want the advice to release", why)
	}
}
