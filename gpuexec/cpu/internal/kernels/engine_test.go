package kernels_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// TestSharing: programs of equal modules share the machine code until the last
// of them is closed.
func TestSharing(t *testing.T) {
	e := openEngine(t)
	short, long := newLaunch(t, e, layerNorm(3, 20, 1e-12), 1), newLaunch(t, e, layerNorm(900, 20, 1e-12), 1)
	if err := short.program.Close(); err != nil {
		t.Fatal(err)
	}
	long.run(t)
	if err := short.instance.Call(short.buffers, 0, 1); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("call of a closed program: %v", err)
	}
	if _, err := short.program.NewInstance(); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("instance of a closed program: %v", err)
	}
	if err := short.program.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	long.run(t)
}

// TestConcurrent: workers share memory, programs and the compiler (E1, E5).
func TestConcurrent(t *testing.T) {
	e := openEngine(t)
	spec := layerNorm(512, 100, 1e-12)
	l := newLaunch(t, e, spec, 3)
	l.run(t)
	want := l.output()
	clear(e.Memory()[l.buffers[3]:][:l.params[3].Bytes])
	const workers = 8
	var wg sync.WaitGroup
	start := make(chan struct{})
	for w := range uint32(workers) {
		wg.Go(func() {
			<-start
			p, err := e.Compile(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close()
			i, err := p.NewInstance()
			if err != nil {
				t.Error(err)
				return
			}
			defer i.Close()
			for b := w; b < spec.Blocks(); b += workers {
				if err := i.Call(l.buffers, b, b+1); err != nil {
					t.Error(err)
				}
			}
			own, err := e.Compile(t.Context(), specOf(ops.GELU, 1, 10+w%3))
			if err != nil {
				t.Error(err)
				return
			}
			if err := own.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	if !slices.Equal(l.output(), want) {
		t.Fatal("eight workers give other bits than one")
	}
}

func TestCallAllocatesNothing(t *testing.T) {
	l := newLaunch(t, openEngine(t), specOf(ops.Add, 4, 8, 4), 1)
	if n := testing.AllocsPerRun(100, func() {
		if err := l.instance.Call(l.buffers, 0, 4); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestArguments: a launch is validated before machine code sees it (E3).
func TestArguments(t *testing.T) {
	e := openEngine(t)
	l := newLaunch(t, e, specOf(ops.Add, 4, 8, 4), 1)
	a, b, y := l.buffers[0], l.buffers[1], l.buffers[2]
	end := uint32(len(e.Memory()))
	for _, c := range []struct {
		name       string
		buffers    []uint32
		begin, end uint32
		ok         bool
	}{
		{"sound", []uint32{a, b, y}, 0, 4, true},
		{"nothing to do", []uint32{a, b, y}, 4, 4, true},
		{"in place", []uint32{y, b, y}, 0, 4, true},
		{"operands alike", []uint32{a, a, y}, 0, 4, true},
		{"at the end of memory", []uint32{a, b, end - 128}, 0, 4, true},
		{"too few", []uint32{a, b}, 0, 4, false},
		{"too many", []uint32{a, b, y, y}, 0, 4, false},
		{"block behind the last", []uint32{a, b, y}, 0, 5, false},
		{"backwards", []uint32{a, b, y}, 3, 2, false},
		{"alignment", []uint32{a, b + 2, y}, 0, 4, false},
		{"beyond memory", []uint32{end - 124, b, y}, 0, 4, false},
		{"far beyond memory", []uint32{a, b, 1<<32 - 4}, 0, 4, false},
		{"result over an operand's middle", []uint32{y - 4, b, y}, 0, 4, false},
		{"result over an operand's last word", []uint32{a, y + 124, y}, 0, 4, false},
		{"result over what is not in place", []uint32{a, y, y}, 0, 4, false},
	} {
		err := l.instance.Call(c.buffers, c.begin, c.end)
		if c.ok && err != nil || !c.ok && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
		if sound := c.end <= 4 && c.begin <= c.end; sound { // the machine's own check comes too late
			if err := l.program.Check(c.buffers); (err == nil) != c.ok {
				t.Errorf("check of %s: %v", c.name, err)
			}
		}
	}
}

// TestForeignToken: an id outside of the table is an error of the call, and the
// instance serves the next one.
func TestForeignToken(t *testing.T) {
	l := newLaunch(t, openEngine(t), specOf(ops.Gather, 3, 8, 5), 1)
	for _, id := range []int32{5, -1, 1 << 30} {
		l.setInt(0, 1, id)
		if err := l.instance.Call(l.buffers, 0, 3); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("id %d of 5: %v", id, err)
		}
		l.intact(t)
	}
	l.setInt(0, 1, 4)
	l.run(t)
}

func TestDiscard(t *testing.T) {
	e := openEngine(t)
	page := os.Getpagesize()
	m := e.Memory()[:4*page]
	for i := range m {
		m[i] = 1
	}
	if err := e.Discard(uint64(page/2), uint64(2*page)); err != nil {
		t.Fatal(err)
	}
	for i, b := range m {
		if inside := i >= page && i < 2*page; inside != (b == 0) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	for _, c := range [][2]uint64{{uint64(len(e.Memory())), 1}, {0, 1 << 40}, {1 << 63, 1 << 63}} {
		if err := e.Discard(c[0], c[1]); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("discard %d: %v", c, err)
		}
	}
}

// TestClose: nothing works afterwards, nothing is left, and twice is fine.
func TestClose(t *testing.T) {
	scratch := t.TempDir()
	e, err := kernels.Open(kernels.Config{MemoryBytes: 1, Scratch: scratch})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(e.Memory()); n != 1<<16 {
		t.Errorf("one byte is rounded to %d", n)
	}
	p, err := e.Compile(t.Context(), specOf(ops.GELU, 1, 1))
	if err != nil {
		t.Fatal(err)
	}
	i, err := p.NewInstance()
	if err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(scratch, "*", "*", "*")); len(left) != 0 {
		t.Errorf("a compile left %v", left)
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Compile(context.Background(), specOf(ops.GELU, 1, 2)); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("compile: %v", err)
	}
	if err := i.Call([]uint32{0, 64}, 0, 1); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("call: %v", err)
	}
	i.Close()
	i.Close()
	if err := p.Close(); err != nil {
		t.Errorf("program: %v", err)
	}
	if left, _ := os.ReadDir(scratch); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What a killed process leaves behind goes with the next Open; what a living one
// uses, what is not ours and what is new stays.
func TestScratchIsSwept(t *testing.T) {
	scratch := t.TempDir()
	open := func() *kernels.Engine {
		e, err := kernels.Open(kernels.Config{MemoryBytes: 1, Scratch: scratch})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	list := func() []string {
		found, _ := filepath.Glob(filepath.Join(scratch, "*"))
		return found
	}
	living := open()
	defer living.Close()
	own := list()
	for _, name := range []string{"kiln-kernels-new", "kiln-kernels-old/files", "another"} {
		if err := os.MkdirAll(filepath.Join(scratch, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	for _, dir := range append(own, filepath.Join(scratch, "kiln-kernels-old"), filepath.Join(scratch, "another")) {
		if err := os.Chtimes(dir, hour, hour); err != nil {
			t.Fatal(err)
		}
	}
	if err := open().Close(); err != nil {
		t.Fatal(err)
	}
	want := append(own, filepath.Join(scratch, "another"), filepath.Join(scratch, "kiln-kernels-new"))
	if runtime.GOOS != "linux" { // no lock says there who lives
		want = append(want, filepath.Join(scratch, "kiln-kernels-old"))
	}
	slices.Sort(want)
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := kernels.Open(kernels.Config{MemoryBytes: 1 << 32}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("4 GiB: %v", err)
	}
	if _, err := kernels.Open(kernels.Config{MemoryBytes: 1, Scratch: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, fault.ErrIO) {
		t.Errorf("no scratch: %v", err)
	}
}
