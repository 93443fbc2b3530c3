//go:build linux && (amd64 || arm64)

package opencl

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// disposition is what the kernel does at a signal: its struct sigaction, which has the
// same fields on amd64 and arm64.
type disposition struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const lastSignal = 64

// dispositions are those of all signals; number 0 is none.
type dispositions [lastSignal + 1]disposition

// inside counts the calls under way that may set handlers, and keeps what there was
// before the first of them.
var inside struct {
	sync.Mutex
	calls  int
	before dispositions
}

// keepSignals calls fn, which may replace Go's signal handlers, and puts back what it
// replaced (SPEC E4).
func keepSignals(fn func()) {
	inside.Lock()
	if inside.calls++; inside.calls == 1 {
		inside.before = readSignals()
	}
	inside.Unlock()
	defer func() {
		inside.Lock()
		defer inside.Unlock()
		inside.calls--
		restoreSignals(&inside.before)
	}()
	fn()
}

func readSignals() (all dispositions) {
	for n := 1; n <= lastSignal; n++ {
		sigaction(n, nil, &all[n])
	}
	return all
}

// restoreSignals puts back what has changed since before. Where Go's own handler has
// come, the program has asked for the signal meanwhile.
func restoreSignals(before *dispositions) {
	ours := before[unix.SIGURG].handler // Go has it always
	for n := 1; n <= lastSignal; n++ {
		var now disposition
		sigaction(n, nil, &now)
		if now != before[n] && (now.handler != ours || before[n].handler == ours) {
			sigaction(n, &before[n], nil)
		}
	}
}

// sigaction leaves *was alone for the signals that it does not take.
func sigaction(signal int, set, was *disposition) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(signal), uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(was)), unsafe.Sizeof(disposition{}.mask), 0, 0)
}
