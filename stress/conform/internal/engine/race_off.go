//go:build !race

package engine

// raceDetector tells that allocations are not the program's own.
const raceDetector = false
