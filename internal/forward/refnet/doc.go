// Package refnet computes a model's forward pass plainly in float64, to check
// what the kernels give. It follows the op list's data flow and the table of
// operations in package oplist and shares nothing else with the executor: no
// kernel, no packing, no bucketing.
//
// Weights are the float32 ones, widened; sums run in ascending order. Cost: about
// 1 ns for each multiplication of the pass on one core, so a request of 20 tokens through
// MiniLM takes about a fifth of a second.
//
// A Net is safe for concurrent use.
package refnet
