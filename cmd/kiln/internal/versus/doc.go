// Package versus runs package gemm against oneDNN, side by side in one process.
//
// Rounds alternate between the two and both use one core, so that what else
// the machine does meets both: only the ratios of a run mean something. The
// results are compared before anything is timed.
package versus
