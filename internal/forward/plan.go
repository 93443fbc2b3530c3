package forward

import (
	"slices"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/forward/oplist"
)

// plan is how one shape runs: each operation with its place in the arena.
type plan struct {
	batch, tokens int
	shapeless     bool // the programs are those of every shape
	steps         []step
	inputs        [-oplist.Starts]part
	output        part
	arena         int64 // bytes
	launches      []gpuexec.Launch
	arguments     []gpuexec.Arg // of all launches, one behind another
}

// step is one operation of a plan.
type step struct {
	bound  oplist.BoundOp
	text   string // see identity
	alike  int    // see Model
	op     ops.Op
	grid   gpuexec.Size
	values []gpuexec.Arg // that follow the tensors
	name   kiln.NameID
	held   kiln.Ref[*gpuexec.Kernel] // the kernel found last
	cost   time.Duration             // that compiling it took
	output part
}

// identity is the primitive's, made when it is asked for: most shapes find their kernels
// without it.
func (s *step) identity() string {
	if s.text == "" {
		s.text = s.bound.Identity()
	}
	return s.text
}

// part is a piece of the arena.
type part struct{ offset, bytes int64 }

const alignment = 64 // of every part, at least: a cache line

// newPlan lowers the operations, those that are alike once, and places their outputs. A piece
// of the arena is used again after its last reader. The steps are in the place of those of the
// plan before, and keep their kernels where both are shapeless.
func newPlan(m *Model, batch, tokens int, shapeless bool, before plan) (*plan, error) {
	bound, err := m.list.AtAlike(batch, tokens, m.alike)
	if err != nil {
		return nil, err
	}
	p := &plan{batch: batch, tokens: tokens, shapeless: shapeless, launches: before.launches, arguments: before.arguments,
		steps: slices.Grow(before.steps[:0], len(bound))[:len(bound)]}
	a := arena{align: max(alignment, m.align)}
	sizes := []int{batch * tokens, batch * tokens, batch}
	if m.list.Ragged {
		sizes = []int{tokens, tokens, 0, tokens, tokens + 1}
	}
	for i, n := range sizes {
		p.inputs[i] = a.take(4 * int64(n))
	}
	for i, b := range bound {
		s := &p.steps[i]
		held, cost := s.held, s.cost
		*s = step{bound: b, name: m.names[i], alike: m.alike[i]}
		if shapeless && before.shapeless {
			s.held, s.cost = held, cost
		}
		if first := &p.steps[s.alike]; first != s {
			s.op, s.grid, s.values = first.op, first.grid, first.values
		} else {
			if s.op, err = m.lower(b); err != nil {
				return nil, err
			}
			s.grid, s.values = m.lib.Launch(s.op)
		}
		s.output = a.take(4 * int64(b.Elements()))
		for _, done := range b.Releases {
			a.give(p.steps[done].output)
		}
	}
	p.output = p.steps[len(p.steps)-1].output
	p.arena = a.high
	return p, nil
}

// operand is where an operation's input lies.
func (p *plan) operand(s oplist.Source) part {
	if s < 0 {
		return p.inputs[-1-s]
	}
	return p.steps[s].output
}

// arena places parts first fit.
type arena struct {
	align int64  // of every part
	free  []part // by offset
	high  int64
}

func (a *arena) take(bytes int64) part {
	bytes = (bytes + a.align - 1) / a.align * a.align
	for i, f := range a.free {
		if f.bytes < bytes {
			continue
		}
		if f.bytes == bytes {
			a.free = slices.Delete(a.free, i, i+1)
		} else {
			a.free[i] = part{f.offset + bytes, f.bytes - bytes}
		}
		return part{f.offset, bytes}
	}
	p := part{a.high, bytes}
	a.high += bytes
	return p
}

func (a *arena) give(p part) {
	i, _ := slices.BinarySearchFunc(a.free, p.offset, func(f part, at int64) int { return int(f.offset - at) })
	a.free = slices.Insert(a.free, i, p)
	for j := max(i-1, 0); j+1 < len(a.free) && j <= i; {
		if a.free[j].offset+a.free[j].bytes == a.free[j+1].offset {
			a.free[j].bytes += a.free[j+1].bytes
			a.free = slices.Delete(a.free, j+1, j+2)
			continue
		}
		j++
	}
}
