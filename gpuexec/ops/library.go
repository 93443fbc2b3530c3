package ops

import (
	"slices"

	"github.com/kiln-cache/kiln/gpuexec"
)

// Library is a backend that runs the operations of this package. Safe for
// concurrent use.
type Library interface {
	gpuexec.Backend
	// Source is what the backend compiles for an Op, with the parameters of its
	// launches: the tensors in the package comment's order, then the values that
	// Launch gives. A backend whose program serves more dimensions than the Op's gives
	// equal sources for them. ErrInvalid for an Op that is none, ErrUnsupported for
	// one that the backend does not have.
	Source(op Op) (gpuexec.Source, error)
	// Launch is the grid of a launch of the Op, and what follows its tensors among the
	// arguments: its dimensions, where the program does not have them. The Source's
	// Params say how large the tensors are then, so that an executor refuses smaller ones.
	Launch(op Op) (grid gpuexec.Size, values []gpuexec.Arg)
	// Prepare says how the backend wants the weight of a matmul.
	Prepare(op Op) (Prepared, error)
}

// Prepared is the form of a constant that a backend computes with: what goes
// through the constant cache, once a process.
type Prepared struct {
	Format string // part of the constant's key: layout and instruction set
	Bytes  int64
	// Fill writes the prepared form of a [k,n] matrix to dst, of Bytes length.
	Fill func(dst []byte, weight []float32) error
	// FillTurned is Fill for the transposed, an [n,k] matrix, as PyTorch keeps weights; nil
	// where it has to be transposed first.
	FillTurned func(dst []byte, weight []float32) error
}

// Find gives the backend of that name if it runs operations, or nil.
func Find(name string) Library {
	lib, _ := gpuexec.Find(name).(Library)
	return lib
}

// Names lists the backends that run operations.
func Names() []string {
	var names []string
	for _, b := range gpuexec.Backends() {
		if _, ok := b.(Library); ok {
			names = append(names, b.Name())
		}
	}
	slices.Sort(names)
	return names
}
