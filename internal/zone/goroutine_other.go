//go:build !amd64 && !arm64

package zone

import "runtime"

// goroutine is the number of the calling goroutine, from a trace, which takes microseconds.
func goroutine() (number uint64) {
	var trace [32]byte
	const before = len("goroutine ")
	for _, digit := range trace[before:runtime.Stack(trace[:], false)] {
		if digit < '0' || digit > '9' {
			break
		}
		number = number*10 + uint64(digit-'0')
	}
	return number
}
