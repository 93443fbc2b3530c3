//go:build amd64 || arm64

package zone

// goroutine is the address of what the runtime knows of the calling goroutine. No two that
// run have the same.
func goroutine() uint64
