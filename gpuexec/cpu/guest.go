package cpu

import (
	"fmt"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/guard"
)

// guest is memory of somebody else that products read: weights that are mapped from a file.
type guest struct {
	of      *guests
	memory  []byte
	release func()
}

// guests are those of a device that were not released. Safe for concurrent use.
type guests struct {
	mu  sync.Mutex
	all map[*guest]struct{}
}

// Adopt makes memory that is only read an argument for products. Release calls release, and so
// does Close for what is left.
func (d *device) Adopt(memory []byte, release func()) gpuexec.Memory {
	g := &guest{&d.guests, memory, release}
	d.guests.mu.Lock()
	defer d.guests.mu.Unlock()
	if d.guests.all == nil {
		d.guests.all = make(map[*guest]struct{})
	}
	d.guests.all[g] = struct{}{}
	return g
}

func (g *guest) Mapped() []byte { return g.memory }

func (g *guest) Release() {
	g.of.mu.Lock()
	delete(g.of.all, g)
	g.of.mu.Unlock()
	g.release()
}

func (a *guests) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.all {
		g.release()
	}
	a.all = nil
}

// weight is an argument that is only read.
func weight(a gpuexec.DeviceArg) (bytes []byte, isGuest bool) {
	if g, is := a.Memory.(*guest); is {
		return g.memory[a.Offset : a.Offset+a.Bytes], true
	}
	return view(a), false
}

// reading runs what reads a guest: where a page of its file is gone, that is an error.
func reading(memory []float32, read func() error) error {
	gone, err := guard.Reading(gpuexec.BytesOf(memory), read)
	if gone {
		return &fault.Error{Op: "cpu: launch", Backend: Name, Reason: fault.Degraded, Err: fmt.Errorf(
			"%w: a weight that is mapped from a file cannot be read any more: was the file cut?", fault.ErrIO)}
	}
	return err
}
