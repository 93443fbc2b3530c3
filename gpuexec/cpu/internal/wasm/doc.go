// Package wasm writes WebAssembly modules with 128-bit SIMD. It is the last
// step of the cpu backend's emitter: an operation of one exact shape goes in
// as Go code that builds typed expressions, a binary module comes out.
//
// An expression is a value of type I32, F32, F32x4 or I32x4, so Go's compiler
// rejects what a WebAssembly validator would: adding a float to an address,
// storing a mask as a number. An expression has no effect until a statement of
// a Func uses it, and each use evaluates it again; what is used twice and is
// not trivial belongs into a Var.
//
// The bytes of a module are a function of the calls that built it and of
// nothing else, so equal kernels have equal digests.
//
// Only what kernels need is here: one memory, functions without results,
// numbers of 32 bits. Misuse that types cannot catch, such as a branch to a
// label outside of its block, is a programmer's error and panics.
//
// A Module and its Funcs are owned by one goroutine; expressions are immutable.
//
// Source of the encoding: WebAssembly Core Specification 2.0, chapter 5.
package wasm
