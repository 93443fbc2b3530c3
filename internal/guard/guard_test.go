package guard_test

import (
	"errors"
	"runtime"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

var errOwn = errors.New("own")

// F3: whatever becomes of user code, whoever asked is told, once.
func TestGuardAndCall(t *testing.T) {
	for _, c := range []struct {
		what  string
		fn    func()
		isErr func(error) bool
	}{
		{"returns", func() {}, func(err error) bool { return err == nil }},
		{"panics", func() { panic(errOwn) }, func(err error) bool {
			var p *fault.PanicError
			return errors.As(err, &p) && p.Value == errOwn && len(p.Stack) > 0
		}},
		{"exits", runtime.Goexit, func(err error) bool { return errors.Is(err, fault.ErrGoexit) }},
	} {
		var guarded, failed []error
		run := func(f func()) {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				f()
			}()
			<-ended
		}
		run(func() {
			guard.Guard(func() error { c.fn(); return nil }, func(err error) { guarded = append(guarded, err) })
		})
		run(func() { guard.Call(c.fn, func(err error) { failed = append(failed, err) }) })
		run(func() {
			if err := guard.Guarded(func() error { c.fn(); return nil }); !c.isErr(err) || c.what == "exits" {
				t.Errorf("%s: Guarded gave %v", c.what, err)
			}
		})
		if len(guarded) != 1 || !c.isErr(guarded[0]) {
			t.Errorf("%s: Guard told %v", c.what, guarded)
		}
		if c.isErr(nil) != (len(failed) == 0) || len(failed) > 1 || len(failed) == 1 && !c.isErr(failed[0]) {
			t.Errorf("%s: Call told %v", c.what, failed)
		}
	}
	var told error
	guard.Guard(func() error { return errOwn }, func(err error) { told = err })
	if told != errOwn {
		t.Errorf("its own error became %v", told)
	}
}

// F3: what a call must do for many it does for all of them.
func TestEach(t *testing.T) {
	var seen []int
	fell := true
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		guard.Each([]int{0, 1, 2, 3, 4}, func(i int) {
			seen = append(seen, i)
			if i%2 == 1 {
				runtime.Goexit()
			}
		})
		fell = false
	}()
	<-ended
	if !slices.Equal(seen, []int{0, 1, 2, 3, 4}) || !fell {
		t.Errorf("called for %v, want each of 0 to 4 in order; the goroutine ended: %t, want true", seen, fell)
	}
}

// F3: who is told of a panic is user code too, as the handler of a log is: its own
// panic goes no further.
func TestCallWhoseListenerPanics(t *testing.T) {
	told := 0
	for _, harm := range []func(){func() { panic(errOwn) }, runtime.Goexit} {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			guard.Call(harm, func(error) { told++; panic("failed") })
		}()
		<-ended
	}
	if told != 2 {
		t.Errorf("told %d times, want 2", told)
	}
}
