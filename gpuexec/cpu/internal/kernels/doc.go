// Package kernels holds the operations of a transformer encoder that are not
// matrix products, as WebAssembly kernels for one exact shape, and the engine
// that compiles them to machine code and runs them (SPEC E3, E4, E8).
//
// A Spec names an operation and its dimensions. It emits the module, lists the
// buffers a launch needs and cuts the work into blocks. An Engine compiles
// specs to Programs or loads them from blobs that an earlier process took, and
// owns the one linear memory in which all buffers lie. An Instance runs a
// program's blocks on one worker.
//
// # Bits
//
// The bits of an output depend on its own inputs alone (SPEC E8): neither the
// rows of other requests, nor padding, nor how a launch is cut into calls, nor
// the worker can change them. To this end every reduction has one written order:
//
//   - sums of LayerNorm: element j goes to accumulator j mod 16, in
//     ascending order; accumulators 0-3, 4-7, 8-11, 12-15 are four vectors
//     v0..v3, added lane by lane as (v0+v1)+(v2+v3); the lanes of the result
//     are added as (l0+l1)+(l2+l3);
//   - the sum of Softmax: element j goes to accumulator j mod 4, ascending; the
//     lanes are added as (l0+l1)+(l2+l3); masked columns add nothing.
//
// A tail shorter than a vector runs through the same instructions with its
// missing lanes zero. No step uses a fused multiply-add, which WebAssembly does
// not have. A form of these kernels for any shape (SPEC E7) has to keep this
// order; its place is another Kind of Spec, whose dimensions are parameters of
// the call.
//
// # Concurrency
//
// A Spec is a value. An Engine and a Program are safe for concurrent use. An
// Instance is owned by one goroutine; several instances may run on the same
// buffers as long as their blocks differ. The machine code cannot be preempted:
// BlocksPerCall says how many blocks keep one call well under half a millisecond.
//
// # Failure
//
// Wrong arguments are ErrInvalid and reach no machine code. A token id outside
// of its table ends the call with ErrInvalid and leaves the rows of that call
// undefined. A blob that cannot be used is an *Error with its Reason.
package kernels
