//go:build unix

package cpu

import (
	"errors"
	"os"
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
			d, q, p, args := launchedOp(t, b, op, nil)
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
			args[1].Memory = d.(*device).Adopt(memory, func() { released++ })
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
			left := d.(*device).Adopt(memory, func() { released++ })
			if got := left.Mapped(); &got[0] != &memory[0] {
				t.Error("it is another memory")
			}
			q.Close()
			p.Release()
			if err := d.Close(); err != nil || released != 2 {
				t.Errorf("closed: %v, released %d times", err, released)
			}
		}
	})
}

// What reads a guest and fails elsewhere fails as ever.
func TestOtherFaultsAreNotAGuests(t *testing.T) {
	memory, _ := mappedCopy(t, make([]byte, 4096))
	for name, read := range map[string]func() error{
		"a panic": func() error { panic("broken") },
		"a fault beside it": func() error {
			var none *int
			*none = 1
			return nil
		},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: it is hidden", name)
				}
			}()
			t.Errorf("%s: %v", name, reading(floats(memory), read))
		}()
	}
	broken := errors.New("broken")
	if err := reading(floats(memory), func() error { return broken }); err != broken {
		t.Errorf("%v, want the error of what reads", err)
	}
}
