package forward

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/self"
)

// adjustable is a backend with another form for some settings: the one whose operations are
// written for the device of a number, and that heeds the setting of its backend.
type adjustable interface {
	For(device int, setting string) ops.Library
}

// multiplying is a backend with a second implementation of products, in a library.
type multiplying interface {
	With(cublas string) ops.Library
}

// heeded are the settings of backends: paths of the libraries that they open, and the name of
// the device that comes first.
var heeded = map[string]string{"cuda": "KILN_NVRTC", "onednn": "KILN_ONEDNN_LIBRARY", "vulkan": "KILN_VULKAN_DEVICE"}

// choice is what a backend's form depends on.
type choice struct {
	backend, setting, cublas string
	device                   int
}

var raised = self.Raised // tests have others

var chosen sync.Map // ops.Library by choice: runtimes share executors of equal ones, and so weights

// mostDevices is how many devices of a backend have forms that are kept. A program may ask
// for any number, and be told by whoever opens it that no device has it: those are not kept.
const mostDevices = 256

// Library gives the backend of that name for a device of it, as the settings choose it, and
// equal ones for equal choices of a device that may be there; nil where no such backend is registered. Safe for
// concurrent use.
func Library(backend string, device int, settings []env.Row) (ops.Library, error) {
	lib := ops.Find(backend)
	other, adjusts := lib.(adjustable)
	c := choice{backend: backend, device: device}
	isa := setting(settings, "KILN_CPU_ISA")
	switch {
	case backend == cpu.Name && isa.Source != env.Default && isa.Value != "": // empty: the runtime is none that was opened
		made, err := cpu.New(isa.Value)
		if err != nil {
			return nil, fmt.Errorf("%s %q: %w", isa.Name, isa.Value, err)
		}
		c.setting, lib = isa.Value, made
	case adjusts:
		c.setting = setting(settings, heeded[backend]).Value
		if _, multiplies := lib.(multiplying); multiplies {
			c.cublas = setting(settings, "KILN_CUBLAS").Value
		}
		if (c.setting != "" && backend != "vulkan" || c.cublas != "") && raised() { // that of vulkan is no path
			return nil, fault.Invalidf("kiln: device", "%s, or a setting beside it, names a library: a program with more rights than its user loads none that the environment names", heeded[backend])
		}
		if c.setting == "" && c.cublas == "" && device == 0 {
			return lib, nil // the registered one
		}
		lib = other.For(device, c.setting)
		if c.cublas != "" {
			lib = lib.(multiplying).With(c.cublas)
		}
	default:
		return lib, nil
	}
	if device >= mostDevices {
		return lib, nil
	}
	first, _ := chosen.LoadOrStore(c, lib)
	return first.(ops.Library), nil
}

// setting is a row of the settings.
func setting(rows []env.Row, name string) env.Row {
	if i := slices.IndexFunc(rows, func(r env.Row) bool { return r.Name == name }); i >= 0 {
		return rows[i]
	}
	return env.Row{Source: env.Default}
}
