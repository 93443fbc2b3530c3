package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/cpu"
	"github.com/kiln-cache/kiln/gpuexec/cuda"
	"github.com/kiln-cache/kiln/gpuexec/onednn"
	_ "github.com/kiln-cache/kiln/gpuexec/opencl" // registers what OpenCL drivers have
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
	"github.com/kiln-cache/kiln/internal/devicename"
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

// libraries gives a backend by its name, the same one each time, and the number of its
// device: of the chosen device, if that is of the backend, and else 0. The backends heed
// KILN_CPU_ISA, KILN_ONEDNN_LIBRARY and KILN_NVRTC.
func libraries(settings env.Settings, chosen string) func(backend string) (ops.Library, int, error) {
	wanted, index, _ := devicename.Parse(chosen)
	embedded := sync.OnceValues(func() (ops.Library, error) {
		lib, err := cpu.New(settings.CPUISA.Value)
		if isa := settings.CPUISA; err != nil && isa.Source == env.Environment {
			err = fmt.Errorf("%s %q: %w", isa.Name, isa.Value, err)
		}
		return lib, err
	})
	primitives, kernels := onednn.New(settings.OneDNN.Value), cuda.New(cuda.Config{NVRTC: settings.NVRTC.Value})
	other := sync.OnceValue(func() ops.Library { return vulkan.New(vulkan.Config{Device: index}) }) // with shaders for it
	return func(backend string) (lib ops.Library, at int, err error) {
		if backend == cpu.Name {
			if lib, err = embedded(); err != nil {
				return nil, 0, err
			}
		} else if backend == onednn.Name {
			lib = primitives
		} else if backend == cuda.Name {
			lib = kernels
		} else if lib = ops.Find(backend); lib == nil {
			return nil, 0, fmt.Errorf("no such device: want one of %s", strings.Join(ops.Names(), ", "))
		}
		if index == 0 || backend != wanted {
			return lib, 0, nil
		}
		if err := numbered(lib, index); err != nil {
			return nil, 0, err
		}
		if backend == vulkan.Name {
			lib = other()
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
