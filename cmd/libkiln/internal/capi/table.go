package capi

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// table has what handles stand for. A number is given once.
var table = struct {
	sync.Mutex
	last uint64
	of   map[uint64]*entry
}{of: make(map[uint64]*entry)}

// entry is one handle that is open.
type entry struct {
	value    any
	parent   uint64              // the handle that it came from; 0 = none
	children map[uint64]struct{} // the handles that came from it
}

// put gives a value a handle. Its parent must be open still.
func put(parent uint64, value any) (uint64, error) {
	table.Lock()
	defer table.Unlock()
	from := table.of[parent]
	if parent != 0 && from == nil {
		return 0, fault.ErrClosed
	}
	table.last++
	if from != nil {
		if from.children == nil {
			from.children = make(map[uint64]struct{})
		}
		from.children[table.last] = struct{}{}
	}
	table.of[table.last] = &entry{value: value, parent: parent}
	return table.last, nil
}

// find is what a handle stands for. ErrClosed if it was freed, ErrInvalid if it never was, or is
// of another kind.
func find[T any](handle uint64) (*T, error) {
	table.Lock()
	defer table.Unlock()
	return findLocked[T](handle)
}

func findLocked[T any](handle uint64) (*T, error) {
	if e := table.of[handle]; e != nil {
		if found, right := e.value.(*T); right {
			return found, nil
		}
	} else if handle != 0 && handle <= table.last {
		return nil, fault.ErrClosed
	}
	return nil, fault.Invalidf("kiln", "%d is no handle of this kind", handle)
}

// take frees a handle and those that came from it, and gives the value of each. It looks at
// no other handle: a program may have many.
func take[T any](handle uint64) (*T, []any, error) {
	table.Lock()
	defer table.Unlock()
	found, err := findLocked[T](handle)
	if err != nil {
		return nil, nil, err
	}
	if from := table.of[table.of[handle].parent]; from != nil {
		delete(from.children, handle)
	}
	return found, freeLocked(handle, nil), nil
}

// freeLocked frees a handle and those that came from it, whose values it adds to freed.
func freeLocked(handle uint64, freed []any) []any {
	children := table.of[handle].children
	delete(table.of, handle)
	for child := range children {
		freed = append(freed, table.of[child].value)
		freed = freeLocked(child, freed)
	}
	return freed
}

// deadline is a context that ends after so many milliseconds; negative = never.
func deadline(ms int64) (context.Context, context.CancelFunc) {
	if ms < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond)
}
