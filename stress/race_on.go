//go:build race

package stress

// raceDetector tells that times are not the program's own.
const raceDetector = true
