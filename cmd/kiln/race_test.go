//go:build race

package main

// raceDetector slows the float64 reference of a large model down to minutes.
const raceDetector = true
