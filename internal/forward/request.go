package forward

import (
	"strconv"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
	"github.com/kiln-cache/kiln/internal/hidden"
)

// Request asks the artefact cache for the kernel of an operation on an executor,
// whose backend the library is. Its keys are those of a primitive (SPEC K4); stated
// is the operation as its model states it, which is part of them.
func Request(exec *gpuexec.Executor, lib ops.Library, op ops.Op, stated string) (artefacts.Request, error) {
	lib = forRows(lib)
	source, spec, err := program(exec, lib, op, stated)
	if err != nil {
		return artefacts.Request{}, err
	}
	q := artefacts.OfKernel(exec, source)
	if spec.Kind != "" {
		info := exec.Info()
		q.Key, _, err = spec.Keys(info.Backend, info.Identity)
	}
	return q, err
}

// forRows is the library of a backend with programs for any number of rows, if it has them.
func forRows(lib ops.Library) ops.Library {
	if hidden.ManyRows != nil {
		if of, ok := hidden.ManyRows(lib).(ops.Library); ok {
			return of
		}
	}
	return lib
}

// anyRows states the operation of a program that serves any number of rows, in place of all that
// models state.
const anyRows = "any rows"

// served is the operation of one row in place of all that a program serves; false for a program
// of one operation.
func served(source gpuexec.Source) (one ops.Op, many bool) {
	of, many := source.Spec.(interface{ OneRow() ops.Op })
	if many {
		one = of.OneRow()
	}
	return one, many
}

// program is the source of an operation under the key that its primitive has in a
// store (SPEC K4, P3), and that primitive, or a zero one where the source has a key of its own.
func program(exec *gpuexec.Executor, lib ops.Library, op ops.Op, stated string) (source gpuexec.Source, spec primitive.Spec, err error) {
	if source, err = lib.Source(op); err != nil {
		return source, spec, err
	}
	if _, code := source.Spec.(gpuexec.Code); code { // has its key, which operations of other dimensions may share
		source.Name = op.Kind.String()
		return source, spec, nil
	}
	source.Name = op.String()
	if one, many := served(source); many {
		source.Name, op, stated = op.Kind.String(), one, anyRows
	}
	layout := ""
	if op.Kind == ops.MatMul {
		weight, err := lib.Prepare(op)
		if err != nil {
			return source, spec, err
		}
		layout = weight.Format
	}
	info := exec.Info()
	spec = primitive.Of(op, layout, stated)
	spec.Engine, spec.Device = info.Backend, strconv.Itoa(info.Index)
	_, source.Key, err = spec.Keys("", gpuexec.Identity{}) // that in a store depends on neither
	return source, spec, err
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
	op, identity := s.op, s.identity()
	if source, err := m.lib.Source(op); err == nil {
		if one, many := served(source); many {
			op, identity = one, anyRows
		}
	}
	key := op.String() + "\x00" + identity
	use := m.record[key]
	if use == nil {
		use = &Use{Backend: m.lib.Name(), Op: op.String(), Descriptor: identity, Shape: h.Shape().String(), Cost: s.cost}
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
