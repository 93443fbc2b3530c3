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
	of   map[uint64]any
}{of: make(map[uint64]any)}

// put gives a value a handle. Its parent must be open still.
func put(parent uint64, value any) (uint64, error) {
	table.Lock()
	defer table.Unlock()
	if parent != 0 && table.of[parent] == nil {
		return 0, fault.ErrClosed
	}
	table.last++
	table.of[table.last] = value
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
	value, there := table.of[handle]
	if found, right := value.(*T); right {
		return found, nil
	}
	if !there && handle != 0 && handle <= table.last {
		return nil, fault.ErrClosed
	}
	return nil, fault.Invalidf("kiln", "%d is no handle of this kind", handle)
}

// take frees a handle and those that came from it, and gives the value of each.
func take[T any](handle uint64) (*T, []any, error) {
	table.Lock()
	defer table.Unlock()
	found, err := findLocked[T](handle)
	if err != nil {
		return nil, nil, err
	}
	delete(table.of, handle)
	var children []any
	for h, value := range table.of {
		if c, ok := value.(interface{ from(uint64) bool }); ok && c.from(handle) {
			children = append(children, value)
			delete(table.of, h)
		}
	}
	return found, children, nil
}

// deadline is a context that ends after so many milliseconds; negative = never.
func deadline(ms int64) (context.Context, context.CancelFunc) {
	if ms < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond)))*time.Millisecond)
}
