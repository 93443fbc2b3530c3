//go:build !amd64

package gemm

// native lists the assembly sets of this processor: there are none.
func native() []*Set { return nil }

func (s *Set) compute(t *tile) { s.computeGeneric(t) }

// softmax, gelu and transpose are of the assembly sets.
func (s *Set) softmax(*rows) {}

func (s *Set) gelu(*vectors) {}

func (s *Set) transpose(*columns) {}
