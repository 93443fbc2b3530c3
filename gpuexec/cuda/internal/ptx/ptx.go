// Package ptx runs PTX, the assembly language of NVIDIA's GPUs, on the processor: what
// NVRTC emits for the kernels of this module. It is for tests, which have no GPU.
//
// It computes what the PTX manual says. Threads run in warps of 32 and come together
// again where their paths meet; threads of a block wait for each other at barriers; the
// blocks of a grid run one after the other. What a GPU would report as an error is a
// Fault. So is what it would not notice: threads that wait for each other for ever, and
// a shuffle with a lane that is not among its members. Approximations (ex2.approx,
// rcp.approx) are the exact result, rounded; a NaN that float32 arithmetic makes is 0x7fffffff.
//
// It says nothing about time, and nothing about races between threads.
package ptx

import (
	"context"
	"fmt"
)

// WarpSize is how many threads a warp has.
const WarpSize = 32

// What a block may have, of any GPU.
const (
	mostThreads = 1024
	mostShared  = 227 << 10 // bytes
)

// Module is a parsed text. Its entries may run at once, as kernels of several streams do;
// they share the module's variables.
type Module struct {
	Version string // of the instruction set: 9.5
	Target  string // sm_80
	entries map[string]*Entry
	data    []byte // of the variables in constant and global memory
}

// Entry gives the kernel of that name.
func (m *Module) Entry(name string) (*Entry, bool) {
	e, ok := m.entries[name]
	return e, ok
}

// Param is a parameter of a kernel: its place in Launch.Params, in bytes.
type Param struct{ Size, Align, Offset int }

// Entry is a kernel.
type Entry struct {
	name       string
	module     *Module
	params     []Param
	maxThreads int // of a block; 0 = as many as a GPU has
	program
}

// Params are the parameters in their order.
func (e *Entry) Params() []Param { return e.params }

// Shared is how many bytes of shared memory each block has, dynamic memory aside.
func (e *Entry) Shared() int { return e.shared }

// Memory is global memory.
type Memory interface {
	// Bytes are n bytes at an address, to be read and written in place. An error means
	// that the address is illegal. Addresses from 1<<63 on are the interpreter's own.
	Bytes(address uint64, n int) ([]byte, error)
}

// Launch is a grid of blocks.
type Launch struct {
	Grid, Block [3]uint32
	Dynamic     uint32 // bytes of shared memory beside the entry's own
	Params      []byte // as Entry.Params says
	Memory      Memory
}

// Kind says what is wrong with a launch.
type Kind int

// The kinds of faults.
const (
	BadLaunch      Kind = iota // sizes that the entry cannot have
	IllegalAddress             // what is not there was read or written
	Misaligned                 // an address that is no multiple of the access's size
	Trap                       // the kernel ended itself
	Deadlock                   // threads wait for each other at barriers or shuffles
	Undefined                  // the manual does not define what happens
)

var kindNames = [...]string{"bad launch", "illegal address", "misaligned address", "trap", "deadlock", "undefined"}

func (k Kind) String() string { return kindNames[k] }

// Fault is what ends a launch.
type Fault struct {
	Kind   Kind
	Entry  string
	Line   int // of the text; 0 where none is meant
	Detail string
}

func (f *Fault) Error() string {
	return fmt.Sprintf("ptx: %s, line %d: %s: %s", f.Entry, f.Line, f.Kind, f.Detail)
}

// Run runs every block, and returns the first *Fault, or the context's error if that ends first.
func (e *Entry) Run(ctx context.Context, l Launch) error {
	threads := uint64(1)
	for i := range 3 {
		if l.Grid[i] == 0 || l.Block[i] == 0 || l.Block[i] > mostThreads {
			return e.fault(BadLaunch, 0, "a grid of %v blocks of %v threads", l.Grid, l.Block)
		}
		threads *= uint64(l.Block[i])
	}
	most := mostThreads
	if e.maxThreads > 0 {
		most = min(most, e.maxThreads)
	}
	if threads > uint64(most) {
		return e.fault(BadLaunch, 0, "blocks of %d threads, want at most %d", threads, most)
	}
	if n := uint64(e.shared) + uint64(l.Dynamic); n > mostShared {
		return e.fault(BadLaunch, 0, "%d bytes of shared memory, want at most %d", n, mostShared)
	}
	want := 0
	if n := len(e.params); n > 0 {
		want = e.params[n-1].Offset + e.params[n-1].Size
	}
	if len(l.Params) < want {
		return e.fault(BadLaunch, 0, "%d bytes of parameters, want %d", len(l.Params), want)
	}
	return e.grid(ctx, l, int(threads))
}

func (e *Entry) fault(kind Kind, line int, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Entry: e.name, Line: line, Detail: fmt.Sprintf(format, args...)}
}
