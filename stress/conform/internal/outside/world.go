package outside

import (
	"context"
	"fmt"
	"slices"
	"sync"
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
	Dir    string // empty at the start; every FILE is relative to it
	Clock  *Clock
	Faults *Faults
	Driver *Driver
	Files  *Files

	base context.Context
	mu   struct {
		sync.Mutex
		env      map[string]string
		refused  map[string]int
		identity map[string]string
		gates    map[string]chan struct{}
		contexts map[string]named
		freed    map[string]int
	}
}

type named struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// New is the outside of a case in dir. Contexts of the script end with base.
func New(base context.Context, dir string) *World {
	w := &World{Dir: dir, Clock: &Clock{}, Faults: &Faults{}, Driver: &Driver{}, base: base}
	w.Files = newFiles(dir)
	w.mu.env = map[string]string{}
	w.mu.refused = map[string]int{}
	w.mu.identity = map[string]string{}
	w.mu.gates = map[string]chan struct{}{}
	w.mu.contexts = map[string]named{}
	w.mu.freed = map[string]int{}
	return w
}

// Setenv sets a variable for components opened from now on.
func (w *World) Setenv(name, value string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.env[name] = value
}

// Lookup reads a variable as os.LookupEnv would.
func (w *World) Lookup(name string) (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.mu.env[name]
	return v, ok
}

// Refuse counts a configuration entry of variable name that a component
// refused and logged.
func (w *World) Refuse(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.refused[name]++
}

// Refused is how many entries of a variable were refused, or of all if name is empty.
func (w *World) Refused(name string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name != "" {
		return w.mu.refused[name]
	}
	sum := 0
	for _, n := range w.mu.refused {
		sum += n
	}
	return sum
}

// Identify replaces a field of the identity; the value "default" restores it.
func (w *World) Identify(field, value string) error {
	if !slices.Contains(Fields, field) {
		return fmt.Errorf("no field %s in the identity: want one of %v", field, Fields)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if value == "default" {
		delete(w.mu.identity, field)
	} else {
		w.mu.identity[field] = value
	}
	return nil
}

// Identity gives a field, or its default where the script has not set it.
func (w *World) Identity(field, byDefault string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v, ok := w.mu.identity[field]; ok {
		return v
	}
	return byDefault
}

// Gate is closed once the script opens it.
func (w *World) Gate(name string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gateLocked(name)
}

func (w *World) gateLocked(name string) chan struct{} {
	g, ok := w.mu.gates[name]
	if !ok {
		g = make(chan struct{})
		w.mu.gates[name] = g
	}
	return g
}

// Go opens a gate for good; opening it again is harmless.
func (w *World) Go(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.gateLocked(name)
	select {
	case <-g:
	default:
		close(g)
	}
}

// Context gives the script's context of that name.
func (w *World) Context(name string) context.Context { return w.named(name).ctx }

// Cancel ends the script's context of that name.
func (w *World) Cancel(name string) { w.named(name).cancel() }

func (w *World) named(name string) named {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, ok := w.mu.contexts[name]
	if !ok {
		n.ctx, n.cancel = context.WithCancel(w.base)
		w.mu.contexts[name] = n
	}
	return n
}

// Freed is how many times values of that name were released.
func (w *World) Freed(value string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.freed[value]
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
func (v *Value) Release() {
	v.world.mu.Lock()
	defer v.world.mu.Unlock()
	v.world.mu.freed[v.Text]++
}

func invalid(op, format string, args ...any) error {
	return fault.Invalidf("conform: "+op, format, args...)
}
