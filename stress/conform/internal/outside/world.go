package outside

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// Fields are the parts of the machine's and the build's identity that a script
// may replace. log_level and port are tuning factors: they never cost a hit.
var Fields = []string{
	"library", "build", "compiler", "driver", "device", "isa", "log_level", "port",
	"vendor", "api", "driver_id", "driver_name", "driver_info", "device_name", "uuid", "device_uuid", "driver_uuid",
}

// World is the outside of one case in one process. Safe for concurrent use.
type World struct {
	Dir     string // empty at the start; every FILE is relative to it
	Clock   Clock
	Faults  Faults
	Driver  Driver
	Files   *Files
	Env     Register[string, string] // variables for components opened from now on
	Refused Counts                   // by variable: configuration entries that a component refused and logged
	Freed   Counts                   // by value: how many times it was released

	base     context.Context
	identity Register[string, string]
	gates    Register[string, named] // whose contexts end when they open
	contexts Register[string, named]
}

type named struct {
	context.Context
	cancel context.CancelFunc
}

// New is the outside of a case in dir. Contexts of the script end with base.
func New(base context.Context, dir string) *World {
	return &World{Dir: dir, Files: newFiles(dir), base: base}
}

// Identify replaces a field of the identity; the value "default" restores it.
func (w *World) Identify(field, value string) error {
	if !slices.Contains(Fields, field) {
		return fmt.Errorf("no field %s in the identity: want one of %v", field, Fields)
	}
	if value == "default" {
		w.identity.Take(field)
	} else {
		w.identity.Set(field, value)
	}
	return nil
}

// Identity gives a field, or its default where the script has not set it.
func (w *World) Identity(field, byDefault string) string {
	if v, ok := w.identity.Lookup(field); ok {
		return v
	}
	return byDefault
}

// Gate is closed once the script opens it.
func (w *World) Gate(name string) <-chan struct{} { return w.gate(name).Done() }

// Go opens a gate for good; opening it again is harmless.
func (w *World) Go(name string) { w.gate(name).cancel() }

func (w *World) gate(name string) named { return of(&w.gates, name, context.Background()) }

// Context gives the script's context of that name.
func (w *World) Context(name string) context.Context { return of(&w.contexts, name, w.base).Context }

// Cancel ends the script's context of that name.
func (w *World) Cancel(name string) { of(&w.contexts, name, w.base).cancel() }

// of gives what the name stands for, which is below base at first.
func of(r *Register[string, named], name string, base context.Context) named {
	return r.Change(name, func(n named) named {
		if n.Context == nil {
			n.Context, n.cancel = context.WithCancel(base)
		}
		return n
	})
}

// Value is what a fake creator makes. Release stands for the finaliser on the
// device; it counts every call, so that a double release shows.
type Value struct {
	Text  string
	Bytes int64
	Cost  time.Duration // of its making, in place of the measured time
	world *World
}

// Value makes one without a creator.
func (w *World) Value(text string, bytes int64, cost time.Duration) *Value {
	return &Value{text, bytes, cost, w}
}

// Release counts one release of the value.
func (v *Value) Release() { v.world.Freed.Add(v.Text) }

func invalid(op, format string, args ...any) error {
	return fault.Invalidf("conform: "+op, format, args...)
}
