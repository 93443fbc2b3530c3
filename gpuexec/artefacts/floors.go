package artefacts

import (
	"fmt"
	"math"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
)

// floors admits floors, so that nobody waits for a turn to know. The actor is told of each
// in the order in which they were admitted.
//
// INVARIANT: the sum of the floors is within the capacity in bytes, unless that is 0 and
// nothing is kept at all.
type floors struct {
	sync.Mutex
	of     map[string]int64 // above 0
	sum    int64
	bytes  limit.Limit // the capacity that was asked for last
	closed bool
}

// add raises an owner's floor, or lowers it by a negative number, and has told know.
func (f *floors) add(owner string, bytes int64, told func()) error {
	f.Lock()
	defer f.Unlock()
	if f.closed {
		return fault.ErrClosed
	}
	if bytes > 0 {
		if err := f.fitLocked(bytes, f.bytes); err != nil {
			return err
		}
	}
	now := max(0, f.of[owner]+bytes)
	f.sum += now - f.of[owner]
	if f.of[owner] = now; now == 0 {
		delete(f.of, owner)
	}
	told()
	return nil
}

// resize takes a capacity in bytes, unless that is below the floors.
func (f *floors) resize(bytes limit.Limit) error {
	f.Lock()
	defer f.Unlock()
	bytes = bytes.Or(f.bytes)
	err := f.fitLocked(0, bytes)
	if err == nil {
		f.bytes = bytes
	}
	return err
}

// fitLocked refuses floors that grow by more bytes than a capacity has left for them.
func (f *floors) fitLocked(more int64, capacity limit.Limit) error {
	most, counted := capacity.Value()
	if !counted || most == 0 {
		most = math.MaxInt64
	}
	if more > most-f.sum {
		return fmt.Errorf("%w: floors of %d bytes, and %d more, in %v bytes: raise the capacity or lower the floors",
			fault.ErrTooLarge, f.sum, more, capacity)
	}
	return nil
}

func (f *floors) close() {
	f.Lock()
	defer f.Unlock()
	f.closed = true
}
