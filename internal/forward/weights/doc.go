// Package weights gives a model its numbers: its weight tensors, out of a file
// where the op list names one and out of a seed where it does not, and the
// token ids of a request.
//
// What comes from a seed is a pure function of the seed, the tensor's name, role
// and shape, and the element's place: the same on every machine, in any order
// and from any number of goroutines. The generator is a counter run through the
// finaliser of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom
// Number Generators, 2014). A value is the sum of four 16-bit uniform numbers, scaled:
// near enough to a normal distribution, exact in integers, and one step of the
// generator each. The scales keep activations of every layer near 1: kernels
// have a deviation of 1/sqrt(inputs), gammas lie around 1, betas and biases
// around 0.
//
// All functions and a Set are safe for concurrent use.
package weights
