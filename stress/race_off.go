//go:build !race

package stress

const raceDetector = false
