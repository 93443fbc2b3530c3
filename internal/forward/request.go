package forward

import (
	"strconv"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// Request asks the artefact cache for the kernel of an operation on an executor,
// whose backend the library is. Its keys are those of a primitive (SPEC K4); stated
// is the operation as its model states it, which is part of them.
func Request(exec *gpuexec.Executor, lib ops.Library, op ops.Op, stated string) (artefacts.Request, error) {
	source, key, err := program(exec, lib, op, stated)
	if err != nil {
		return artefacts.Request{}, err
	}
	q := artefacts.OfKernel(exec, source)
	q.Key = key
	return q, nil
}

// program is the source of an operation under the key that its primitive has in a
// store, and the key that it has in an artefact cache (SPEC K4, P3).
func program(exec *gpuexec.Executor, lib ops.Library, op ops.Op, stated string) (source gpuexec.Source, key string, err error) {
	if source, err = lib.Source(op); err != nil {
		return source, "", err
	}
	if _, code := source.Spec.(gpuexec.Code); code { // has its key, which operations of other dimensions may share
		source.Name = op.Kind.String()
		return source, artefacts.OfKernel(exec, source).Key, nil
	}
	source.Name = op.String()
	layout := ""
	if op.Kind == ops.MatMul {
		weight, err := lib.Prepare(op)
		if err != nil {
			return source, "", err
		}
		layout = weight.Format
	}
	info := exec.Info()
	spec := primitive.Of(op, layout, stated)
	spec.Engine, spec.Device = info.Backend, strconv.Itoa(info.Index)
	key, source.Key, err = spec.Keys(info.Backend, info.Identity)
	return source, key, err
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
	identity := s.identity()
	key := s.op.String() + "\x00" + identity
	use := m.record[key]
	if use == nil {
		use = &Use{Backend: m.lib.Name(), Op: s.op.String(), Descriptor: identity, Shape: h.Shape().String(), Cost: s.cost}
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
