package onednn

import (
	"runtime"

	"github.com/kiln-cache/kiln/internal/guard"
)

// assemble makes a primitive. Where that fails in the library's assembler, 3.2 keeps the error
// with the thread: whatever it assembles there from then on fails as well, and a sum or a
// concatenation is made without its parts, which ends the process when it runs. So such a thread
// ends, and what failed is tried once more on another: it may have come to one of these.
func (l *Library) assemble(pd handle) (h handle, err error) {
	for range 2 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // with which the thread ends that is not unlocked
			err = guard.Guarded(func() (err error) {
				l.image.alone(func() {
					h, err = l.make("dnnl_primitive_create", func(h *handle) int32 { return l.c.Make(h, pd) })
				})
				return err
			})
			if !answered(err, runtimeError) {
				runtime.UnlockOSThread()
			}
		}()
		if <-done; !answered(err, runtimeError) {
			break
		}
	}
	return h, err
}
