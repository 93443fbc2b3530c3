package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
	"github.com/kiln-cache/kiln/internal/forward/safetensors"
)

// Set is the weights of one model. It is safe for concurrent use until Close.
type Set struct {
	seed    uint64
	file    *safetensors.File // nil: from the seed
	weights map[string]oplist.Weight
}

// Open gives the weights of a model: from the safetensors file that its list
// names, else from the seed. A file that lacks a weight or has one of another
// shape or type matches fault.ErrInvalid; tensors the list does not name are
// passed over. The caller closes the set.
func Open(m *oplist.Model, seed uint64) (*Set, error) {
	s := &Set{seed: seed, weights: make(map[string]oplist.Weight, len(m.Weights))}
	for _, w := range m.Weights {
		s.weights[w.Name] = w
	}
	path := m.WeightsPath()
	if path == "" {
		return s, nil
	}
	file, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	if err := complete(file, path, m.Weights); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	s.file = file
	return s, nil
}

// complete refuses a file that has not every weight as the list describes it.
func complete(file *safetensors.File, path string, want []oplist.Weight) error {
	missing, first := 0, ""
	for _, w := range want {
		t, ok := file.Tensor(w.Name)
		switch {
		case !ok:
			if missing++; missing == 1 {
				first = w.Name
			}
		case t.Type != "F32" || !slices.Equal(t.Shape, w.Shape):
			return fault.Invalidf("weights: open", "%s: tensor %q is %s %v, the op list wants F32 %v", path, w.Name, t.Type, t.Shape, w.Shape)
		}
	}
	if missing > 0 {
		return fault.Invalidf("weights: open", "%s: tensor %q is missing, %d of %d are: give a file with all, or take weights out of the op list's header to have them generated",
			path, first, missing, len(want))
	}
	return nil
}

// Close closes the file, if there is one.
func (s *Set) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// Tensor gives a weight's values, row major. Each call reads or makes them
// anew: the caller owns them. A name that is not in the op list matches
// fault.ErrNotFound.
func (s *Set) Tensor(name string) ([]float32, error) {
	w, ok := s.weights[name]
	if !ok {
		return nil, fmt.Errorf("weights: %q: %w", name, fault.ErrNotFound)
	}
	if s.file != nil {
		return s.file.Float32(name)
	}
	return Generate(s.seed, w), nil
}

// Identity is a text that two tensors share only if they hold the same values:
// a digest for those of a file, which reads them, and what they are made from
// for generated ones, which costs nothing.
func (s *Set) Identity(name string) (string, error) {
	w, ok := s.weights[name]
	if !ok {
		return "", fmt.Errorf("weights: %q: %w", name, fault.ErrNotFound)
	}
	if s.file == nil {
		return fmt.Sprintf("%s %d %s %v %q", generation, s.seed, w.Role, w.Shape, w.Name), nil
	}
	values, err := s.file.Float32(name)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	var block [1 << 12]byte
	for part := range slices.Chunk(values, len(block)/4) {
		for i, v := range part {
			binary.LittleEndian.PutUint32(block[4*i:], math.Float32bits(v))
		}
		h.Write(block[:4*len(part)]) // a hash never fails to write
	}
	return fmt.Sprintf("f32 %v sha256:%x", w.Shape, h.Sum(nil)), nil
}
