package encoder

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// Request asks the artefact cache for the kernel of a source on an executor.
// descriptor is the primitive's as the model states it: two primitives stay two
// even where a backend happens to make one program of them (SPEC K4).
func Request(exec *gpuexec.Executor, source gpuexec.Source, descriptor string) artefacts.Request {
	built := func(k *gpuexec.Kernel, err error) (artefacts.Built, error) {
		if err != nil {
			return artefacts.Built{}, err
		}
		return artefacts.Built{Value: k, Bytes: k.Bytes(), Free: k.Release, Blob: k.Blob, Requires: k.Requires()}, nil
	}
	info := exec.Info()
	device := info.Backend + "\x00" + info.Identity.Build + "\x00" + info.Identity.Device + "\x00" + info.Identity.Driver
	key := source.Key + "\x00" + descriptor
	return artefacts.Request{
		Key:       device + "\x00" + key,
		StoredKey: key,
		Backend:   info.Backend,
		Identity:  &info.Identity,
		Create:    func(ctx context.Context) (artefacts.Built, error) { return built(exec.Compile(ctx, source)) },
		Load: func(ctx context.Context, blob []byte) (artefacts.Built, error) {
			return built(exec.Load(ctx, source, blob))
		},
	}
}

// primitive is a source under the key of the primitive: two primitives stay two
// even where a backend happens to make one program of them (SPEC K4).
func primitive(source gpuexec.Source, descriptor string) gpuexec.Source {
	source.Key += "\x00" + descriptor
	return source
}

// Use is a kernel that a model asked for, with how often it did.
type Use struct {
	Backend    string
	Op         string        // what the device runs, as ops.Op.String writes it
	Descriptor string        // the operation as the model states it
	Shape      string        // of the first request that asked for it
	Cost       time.Duration // what its compile took
	Uses       int64
}

// note counts a use of a step's kernel.
func (m *Model) note(h *kiln.Group, s *step) {
	key := s.source.Key + "\x00" + s.identity
	use := m.record[key]
	if use == nil {
		use = &Use{Backend: m.lib.Name(), Op: s.op.String(), Descriptor: s.identity, Shape: h.Shape().String(), Cost: s.cost}
		m.record[key] = use
	}
	use.Uses++
}

// Recorded is what the model asked for so far, in no order; nil unless Config.Record
// is set.
func (m *Model) Recorded() []Use {
	var all []Use
	for _, use := range m.record {
		all = append(all, *use)
	}
	return all
}
