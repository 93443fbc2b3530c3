// Command tally reads the output of go test -json and prints it as a person
// reads it: a line for each package, the output of what failed or was skipped,
// how many were skipped if any, and last "N passed, N failed".
//
// Counted are test functions, examples and fuzz targets, not their subtests. A
// package that failed without a test that did (it does not build, or panicked)
// counts as one failure. Lines that are not JSON pass through. It exits with 1
// if anything failed or nothing was run.
//
//	go test -json ./... | go run ./internal/tally [-total FILE]
package main
