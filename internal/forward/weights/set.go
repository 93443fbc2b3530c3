package weights

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// Set is the weights of one model. It is safe for concurrent use until Close.
type Set struct {
	seed       uint64
	file       *tensorfile.File // nil: from the seed
	transposed bool
	weights    map[string]oplist.Weight
	mu         struct {
		sync.Mutex
		digests map[string]string // of tensors of the file, each read once
	}
}

// Open gives the weights of a model: from the safetensors file that its list
// names, else from the seed. A file that lacks a weight or has one of another
// shape matches fault.ErrInvalid, and one of a type that is not read
// fault.ErrUnsupported; tensors the list does not name are passed over. The
// caller closes the set.
func Open(m *oplist.Model, seed uint64) (*Set, error) {
	path := m.WeightsPath()
	if path == "" {
		return newSet(m, seed), nil
	}
	file, err := tensorfile.Open(path)
	if err != nil {
		return nil, err
	}
	s, err := Of(m, path, file, false)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return s, nil
}

// Of gives the weights of a model from an open file, which the set closes. The kernels of
// matrix products may lie transposed there, all but those that the file says it has turned. Errors are as Open's; name is what they call
// the file.
func Of(m *oplist.Model, name string, file *tensorfile.File, transposed bool) (*Set, error) {
	s := newSet(m, 0)
	s.file, s.transposed = file, transposed
	if err := s.complete(name, m.Weights); err != nil {
		return nil, err
	}
	return s, nil
}

func newSet(m *oplist.Model, seed uint64) *Set {
	s := &Set{seed: seed, weights: make(map[string]oplist.Weight, len(m.Weights))}
	s.mu.digests = make(map[string]string)
	for _, w := range m.Weights {
		s.weights[w.Name] = w
	}
	return s
}

// complete refuses a file that has not every weight as the list describes it.
func (s *Set) complete(file string, want []oplist.Weight) error {
	missing, first := 0, ""
	for _, w := range want {
		t, ok := s.file.Tensor(w.Name)
		shape := w.Shape
		if s.turned(w) {
			shape = []int{w.Shape[1], w.Shape[0]}
		}
		switch {
		case !ok:
			if missing++; missing == 1 {
				first = w.Name
			}
		case !slices.Equal(t.Shape, shape):
			return fault.Invalidf("weights: open", "%s: tensor %q is %s %v, the model wants %v", file, w.Name, t.Type, t.Shape, shape)
		case !slices.Contains(types, t.Type):
			return &fault.Error{Op: "weights: open", Err: fmt.Errorf("%w: %s: tensor %q is %s, want %s", fault.ErrUnsupported, file, w.Name, t.Type, strings.Join(types, ", "))}
		}
	}
	if missing > 0 {
		return fault.Invalidf("weights: open", "%s: tensor %q is missing, %d of %d are: give a file with all", file, first, missing, len(want))
	}
	return nil
}

// types are those of the numbers that can be used.
var types = []string{"F32", "F16", "BF16"}

// turned: the file has the transposed of this weight.
func (s *Set) turned(w oplist.Weight) bool {
	t, _ := s.file.Tensor(w.Name)
	return w.Role == oplist.Kernel && s.transposed != t.Turned
}

// Close closes the file, if there is one.
func (s *Set) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// Use calls use with a weight's values, row major, which it must not change and which
// are valid until it returns. A name that is not in the op list matches
// fault.ErrNotFound, a set that was closed fault.ErrClosed.
func (s *Set) Use(name string, use func(values []float32) error) error {
	w := s.weights[name]
	return s.UseStored(name, func(values []float32, turned bool) error {
		if turned {
			values = transpose(values, w.Shape[0], w.Shape[1])
		}
		return use(values)
	})
}

// UseStored is Use with the values as the file has them: turned where they are those of
// the transposed weight.
func (s *Set) UseStored(name string, use func(values []float32, turned bool) error) error {
	w, ok := s.weights[name]
	switch {
	case !ok:
		return fmt.Errorf("weights: %q: %w", name, fault.ErrNotFound)
	case s.file == nil:
		return use(Generate(s.seed, w), false)
	}
	return s.file.Floats(name, func(values []float32) error { return use(values, s.turned(w)) })
}

// Pieces is Use in pieces, in their order, of a weight that is no kernel.
func (s *Set) Pieces(name string, use func(values []float32) error) error {
	if _, ok := s.weights[name]; !ok || s.file == nil {
		return s.Use(name, use)
	}
	return s.file.FloatPieces(name, use)
}

// transpose gives the [k,n] matrix of an [n,k] one, in blocks that the cache holds.
func transpose(from []float32, k, n int) []float32 {
	const block = 32
	out := make([]float32, len(from))
	for i := 0; i < n; i += block {
		for j := 0; j < k; j += block {
			for row := i; row < min(i+block, n); row++ {
				for column := j; column < min(j+block, k); column++ {
					out[column*n+row] = from[row*k+column]
				}
			}
		}
	}
	return out
}

// Tensor gives a copy of a weight's values, for those who keep them; else as Use.
func (s *Set) Tensor(name string) (values []float32, err error) {
	err = s.Use(name, func(v []float32) error { values = slices.Clone(v); return nil })
	return values, err
}

// Identity is a text that two tensors share only if they hold the same values: what they
// are made from for generated ones, which costs nothing, and for those of a file what
// tensorfile.State says. Where the file has no stamp it is a digest, for which each tensor
// is read once; the end of ctx ends that.
func (s *Set) Identity(ctx context.Context, name string) (string, error) {
	w, ok := s.weights[name]
	if !ok {
		return "", fmt.Errorf("weights: %q: %w", name, fault.ErrNotFound)
	}
	if s.file == nil {
		return fmt.Sprintf("%s %d %s %v %q", generation, s.seed, w.Role, w.Shape, w.Name), nil
	}
	t, _ := s.file.Tensor(name)
	form := fmt.Sprintf("%s %v turned:%t", t.Type, t.Shape, s.turned(w))
	s.mu.Lock()
	digest := s.mu.digests[name]
	s.mu.Unlock()
	if digest != "" {
		return digest, nil
	}
	digest, err := s.digest(ctx, name)
	if err != nil {
		return "", err
	}
	digest = form + " " + digest
	s.mu.Lock()
	s.mu.digests[name] = digest
	s.mu.Unlock()
	return digest, nil
}

// digest tells the bytes of a tensor of the file from those of others.
func (s *Set) digest(ctx context.Context, name string) (string, error) {
	if state, err := s.file.State(ctx, name); state != "" || err != nil {
		return state, err
	}
	sum := sha256.New()
	err := s.file.Pieces(name, func(bytes []byte) error {
		sum.Write(bytes) // gives no error
		return ctx.Err()
	})
	return fmt.Sprintf("sha256:%x", sum.Sum(nil)), err
}
