// Package stress holds Kiln's rooms under random concurrent use and checks
// what must hold at every moment: no value for another key, no value freed in
// use, everything freed exactly once, capacities never exceeded at a sample, no
// growth of goroutines or of the heap. It is what `kiln stress` runs, on a user's machine too.
//
// A run is repeatable as far as concurrency allows: the seed fixes what every
// goroutine asks for, not how they interleave.
package stress
