// Package cpu is the embedded device: it needs no C compiler and no library.
// Matrix products run in Go assembly over weights packed once. So do attention, which is
// one program for all dimensions (SPEC E7), and, with AVX2 or AVX-512, gelu. Every other
// operation is a WebAssembly kernel for its exact shape, compiled to machine code. Models of this
// module ask for other programs, which serve any number of rows.
// Importing the package registers the backend "cpu", which runs every operation of
// package ops, and no gpuexec.Code.
//
// Device memory is one linear memory of up to 4 GiB address space that host and
// device share: Buffer.Mapped gives it. A blob holds a kernel's machine code; of
// what runs in Go assembly it only names what would be run, since its code is part
// of the program.
//
// # Bits
//
// The bits of an output row depend on that row's inputs alone (SPEC E8): sums
// run over ascending k in one chain of fused multiply-adds, padding takes no
// part, and the other reductions have the order that package internal/kernels
// states. All instruction sets give the same bits, the portable one included. An
// attention has the bits of the operations that it stands for: reorder, batch_matmul,
// softmax.
//
// # Preemption
//
// Machine code cannot be stopped by the Go runtime, so a launch is cut into
// calls of well under half a millisecond (SPEC E4).
//
// # Cores
//
// A worker computes on one core. A launch that takes two thirds of a millisecond or more has
// helpers in place of workers that have nothing to do: on an idle machine of many cores one
// long text has them all, under load each text has one. They make room for the next run
// within half a millisecond. Config.Workers of the executor bounds workers and helpers
// together.
//
// # Concurrency
//
// As gpuexec's contract says: a queue belongs to one worker, the rest is safe
// for concurrent use.
package cpu
