//go:build unix

package cpu

import (
	"errors"
	"os"
	"runtime/debug"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// mappedCopy is a copy of some bytes in a file, mapped for reading.
func mappedCopy(t *testing.T, from []byte) (memory []byte, file *os.File) {
	t.Helper()
	file, err := os.Create(t.TempDir() + "/weight")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if _, err := file.Write(from); err != nil {
		t.Fatal(err)
	}
	memory, err = unix.Mmap(int(file.Fd()), 0, len(from), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(memory); err != nil {
			t.Error(err)
		}
	})
	return memory, file
}

// E8: a product has the same bits if its weight is mapped from a file. If the file is cut, it is
// an error of the launch, with helpers and without; other faults are not hidden by that.
func TestProductReadsAGuest(t *testing.T) {
	sets(t, func(t *testing.T, b *Backend) {
		for _, rows := range []int64{5, 700} { // without helpers, and with them
			op := ops.New(ops.MatMul, rows, 96, 400)
			q, p, args := launchedOp(t, b, op, nil)
			size, _ := b.Launch(op)
			launch := func() error {
				clear(view(args[2]))
				err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1})
				return errors.Join(err, q.Finish(t.Context()))
			}
			if err := launch(); err != nil {
				t.Fatal(err)
			}
			want := slices.Clone(view(args[2]))
			memory, file := mappedCopy(t, view(args[1]))
			released := 0
			args[1].Memory = q.d.Adopt(memory, func() { released++ })
			if err := launch(); err != nil || !slices.Equal(view(args[2]), want) {
				t.Errorf("%s: %v, or other bits", op, err)
			}
			if err := file.Truncate(4096); err != nil {
				t.Fatal(err)
			}
			failed := new(fault.Error)
			if err := launch(); !errors.Is(err, fault.ErrIO) || !errors.As(err, &failed) || failed.Backend != Name {
				t.Errorf("%s: its file was cut: %v", op, err)
			}
			args[1].Memory.Release()
			if released != 1 {
				t.Errorf("released %d times", released)
			}
			left := q.d.Adopt(memory, func() { released++ })
			if got := left.Mapped(); &got[0] != &memory[0] {
				t.Error("it is another memory")
			}
			if closeAll(q, p); released != 2 {
				t.Errorf("closed: released %d times", released)
			}
		}
	})
}

// E8: a weight may begin anywhere in a guest, as in other memory.
func TestGuestIsReadFromItsOffset(t *testing.T) {
	b, err := New("auto")
	if err != nil {
		t.Fatal(err)
	}
	op := ops.New(ops.MatMul, 5, 96, 400)
	q, p, args := launchedOp(t, b, op, nil)
	size, _ := b.Launch(op)
	launch := func() []byte {
		clear(view(args[2]))
		err := q.Launch(t.Context(), p, args, size, gpuexec.Size{1, 1, 1})
		if err := errors.Join(err, q.Finish(t.Context())); err != nil {
			t.Fatal(err)
		}
		return slices.Clone(view(args[2]))
	}
	want := launch()
	const before = 64
	memory, _ := mappedCopy(t, slices.Concat(make([]byte, before), view(args[1])))
	args[1].Memory, args[1].Offset = q.d.Adopt(memory, func() {}), before
	if !slices.Equal(launch(), want) {
		t.Error("other bits")
	}
	closeAll(q, p)
}

// What reads a guest and fails elsewhere, be it beside the guest, fails as ever: with a fault at an
// address of its own alone it is an error, up to its last number. The goroutine is then as it was.
func TestOtherFaultsAreNotAGuests(t *testing.T) {
	page := os.Getpagesize()
	memory, _ := mappedCopy(t, make([]byte, 5*page))
	for _, at := range []int{0, 3, 4} { // of a guest that is pages 1 to 3
		if err := unix.Mprotect(memory[at*page:][:page], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	own := floats(memory[page : 4*page])
	touch := func(at int) func() error {
		return func() error {
			if memory[at] != 0 {
				t.Error("it is not 0")
			}
			return nil
		}
	}
	for _, at := range []int{3 * page, 4*page - 1} {
		if err := reading(own, touch(at)); !errors.Is(err, fault.ErrIO) {
			t.Errorf("byte %d: %v", at-page, err)
		}
	}
	for name, read := range map[string]func() error{
		"a panic": func() error { panic("broken") },
		"a fault": func() error {
			var none *int
			*none = 1
			return nil
		},
		"a fault before it": touch(page - 1),
		"a fault behind it": touch(4 * page),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it is hidden", name)
				}
			}()
			t.Errorf("%s: %v", name, reading(own, read))
		}()
	}
	broken := errors.New("broken")
	if err := reading(own, func() error { return broken }); err != broken {
		t.Errorf("%v, want the error of what reads", err)
	}
	if debug.SetPanicOnFault(false) {
		t.Error("any fault of this goroutine is a panic from now on")
	}
}
