package onednn

import (
	"context"
	"encoding/binary"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/primitive"
)

// Constant is a weight in the layout that a primitive wants, to be kept by a cache of
// constants (package constants): for equal numbers, also of several models, it is made
// once in one layout by one Library (SPEC T1).
type Constant struct {
	Parts [][]byte // what its ID is the Content of: the Library, both layouts, and the numbers; of this process only
	Bytes int64    // that it takes

	// Make reorders the numbers into new memory, which is to be released once. It may be
	// called any number of times, several at once.
	Make func(ctx context.Context) (*Memory, error)
}

// Constant says how numbers in one layout become a constant in another, such as a
// descriptor's Tensors have one. The numbers are not copied: they must not change. e is an
// engine on this library, whose reorder is used. ErrInvalid: the tensors are not of one
// size, or the numbers are not a tensor's.
func (l *Library) Constant(e *primitive.Engine, numbers []byte, from, to primitive.Tensor) (Constant, error) {
	const op = "onednn: constant"
	if !concrete(&from) || !concrete(&to) || !slices.Equal(from.Dims, to.Dims) {
		return Constant{}, fault.Invalidf(op, "%s %v as %s %v: want two layouts of one size, such as one of a descriptor's", from.Type, from.Dims, to.Type, to.Dims)
	}
	given, err := l.size(&from)
	if err == nil && given != int64(len(numbers)) {
		err = fault.Invalidf(op, "%d bytes: want the %d of %s %v", len(numbers), given, from.Type, from.Dims)
	}
	if err != nil {
		return Constant{}, err
	}
	taken, err := l.size(&to)
	if err != nil {
		return Constant{}, err
	}
	s, err := primitive.Reorder([]primitive.Tensor{cloned(from), cloned(to)})
	if err != nil {
		return Constant{}, err
	}
	key, err := s.Key()
	if err != nil {
		return Constant{}, err
	}
	id := l.about.Identity
	mine := binary.AppendUvarint(nil, l.number) // no other Library executes its memory
	c := Constant{Parts: [][]byte{[]byte(id.Library), []byte(id.Build), mine, []byte(key), numbers}, Bytes: taken}
	c.Make = func(ctx context.Context) (*Memory, error) { return l.reordered(ctx, e, &s, numbers) }
	return c, nil
}

// size is how many bytes the library gives a tensor.
func (l *Library) size(t *primitive.Tensor) (int64, error) {
	md, err := l.newDesc(t)
	if err != nil {
		return 0, err
	}
	defer l.dropDesc(md)
	return int64(l.c.DescBytes(md)), nil
}

// reordered runs a reorder into new memory.
func (l *Library) reordered(ctx context.Context, e *primitive.Engine, s *primitive.Spec, numbers []byte) (*Memory, error) {
	src, err := l.NewMemory(s.Op.Tensors[0])
	if err != nil {
		return nil, err
	}
	defer src.Release()
	copy(src.Bytes(), numbers)
	dst, err := l.NewMemory(s.Op.Tensors[1])
	if err != nil {
		return nil, err
	}
	made := false
	defer func() { // the context is user code, and may panic
		if !made {
			dst.Release()
		}
	}()
	lease, _, err := e.Primitive(ctx, s, "")
	if err != nil {
		return nil, err
	}
	defer lease.End()
	if err := l.Execute(ctx, lease.Primitive(), Arg{Src, src}, Arg{Dst, dst}); err != nil {
		return nil, err
	}
	made = true
	return dst, nil
}
