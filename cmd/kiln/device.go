package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	_ "github.com/kiln-cache/kiln/gpuexec/cuda"   // registers NVIDIA's devices
	_ "github.com/kiln-cache/kiln/gpuexec/onednn" // and oneDNN
	_ "github.com/kiln-cache/kiln/gpuexec/opencl" // and what OpenCL drivers have
	"github.com/kiln-cache/kiln/gpuexec/ops"
	_ "github.com/kiln-cache/kiln/gpuexec/vulkan" // and Vulkan drivers
	"github.com/kiln-cache/kiln/internal/devicename"
	"github.com/kiln-cache/kiln/internal/forward"
)

// device is a flag that names a backend, with the number of one of its devices or without.
func (c *call) device(p *string, about string) {
	c.text(p, "device NAME", about+": "+list(ops.Names())+", or one of several such as opencl:1, see kiln devices",
		list(ops.Names())+", or one of these with a number, such as opencl:1", func(text string) bool {
			backend, _, ok := devicename.Parse(text)
			return ok && slices.Contains(ops.Names(), backend)
		})
}

// backendOf is the name of a device's backend.
func backendOf(device string) string {
	backend, _, _ := devicename.Parse(device)
	return backend
}

// libraries gives backends by their names, each the same one each time, as the settings
// choose them, and which device of it is meant: the one that is chosen, if it is of that
// backend, and else the first.
func libraries(settings env.Settings, chosen string) func(backend string) (ops.Library, int, error) {
	wanted, number, _ := devicename.Parse(chosen)
	rows := env.Table(settings)
	return func(backend string) (ops.Library, int, error) {
		index := 0
		if backend == wanted {
			index = number
		}
		lib, err := forward.Library(backend, index, rows)
		switch {
		case err != nil:
			return nil, 0, err
		case lib == nil:
			return nil, 0, fmt.Errorf("no such device: want one of %s", strings.Join(ops.Names(), ", "))
		case index > 0:
			err = numbered(lib, index)
		}
		if err != nil {
			return nil, 0, err
		}
		return lib, index, nil
	}
}

// numbered refuses a number that no device of a backend has, unless the whole backend is
// absent: whoever opens it is told what to install.
func numbered(b gpuexec.Backend, index int) error {
	var names []string
	for _, d := range b.Devices(context.Background()) {
		if d.Name == "" || d.Index == index {
			return nil
		}
		names = append(names, fmt.Sprintf("%s:%d (%s)", d.Backend, d.Index, d.Name))
	}
	return fmt.Errorf("--device %s:%d: no such device: there is %s", b.Name(), index, strings.Join(names, ", "))
}

// identities gives the identity that stored kernels of a backend must fit: an empty
// one, which nothing fits, where the backend or its driver is absent.
func identities(library func(backend string) (ops.Library, int, error)) func(backend string) gpuexec.Identity {
	return func(backend string) gpuexec.Identity {
		id, _ := identityOf(library, backend)
		return id
	}
}

// identityOf is that of a backend's device, with the reason if there is none. A store has
// kernels of backends that run no operations, too.
func identityOf(library func(backend string) (ops.Library, int, error), backend string) (gpuexec.Identity, error) {
	var b gpuexec.Backend
	lib, index, err := library(backend)
	if err == nil {
		b = lib // as kiln run would use it
	} else if b = gpuexec.Find(backend); b == nil || backend == cpu.Name {
		return gpuexec.Identity{}, err
	}
	all := b.Devices(context.Background())
	switch {
	case index >= len(all):
		return gpuexec.Identity{}, nil
	case !all[index].Available:
		return gpuexec.Identity{}, errors.New(all[index].Reason)
	}
	return all[index].Identity, nil
}
