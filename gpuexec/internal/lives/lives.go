// Package lives is the test of what a long life with a device leaves behind: launches,
// programs that are compiled, run once and evicted, and devices that are opened and closed.
// One process makes them by Kiln, another with the driver's calls alone, and what the
// first has grown by is held against the second. For tests of backends.
package lives

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

var (
	long = flag.Bool("long", false, "lives: 100,000 launches, and 1,000 compiles and opened devices")
	side = flag.String("side", "", "lives: what this process makes, kiln or driver; empty = starts one of each")
)

// Calls are what a life is made of. Each is one round and leaves nothing.
type Calls struct {
	Launch  func() error      // to its end
	Compile func(i int) error // of another program for each i, which is run once, and evicted
	Open    func() error      // a device, and close it
	Close   func() error
}

// A Subject is a backend's device 0.
type Subject struct {
	Backend gpuexec.Backend
	Source  func(i int) gpuexec.Source
	Args    func(b *gpuexec.Buffer) []gpuexec.Arg // of a launch of it
	Driver  func() (Calls, error)                 // the driver's calls for the same
	Objects func() int64                          // of the driver, that this process has made and not destroyed
}

// grown is what a part of a life left.
type grown struct {
	Rounds  int
	Objects int64 // of the driver
	Bytes   int64 // of resident memory, that came after the first rounds
	All     int64 // that are resident
}

var background = context.Background()

// Test is the whole test. test is its caller's name: its processes run that alone.
func Test(t *testing.T, test string, s Subject) {
	if *side != "" {
		s.live(t)
		return
	}
	kiln, driver := alone(t, test, "kiln"), alone(t, test, "driver")
	for part, k := range kiln {
		d := driver[part]
		t.Logf("%-8s %6d times: Kiln's process grew by %.1f MiB to %.0f, the driver's by %.1f to %.0f",
			part, k.Rounds, mib(k.Bytes), mib(k.All), mib(d.Bytes), mib(d.All))
		const late = 8 // of programs that a worker is about to destroy
		if max(k.Objects, d.Objects) > late {
			t.Errorf("%s: %d objects of the driver more than before, %d by its calls alone", part, k.Objects, d.Objects)
		}
		if most := d.Bytes + d.All/10; k.Bytes > most {
			t.Errorf("%s: %.1f MiB more than before, want at most %.1f", part, mib(k.Bytes), mib(most))
		}
	}
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// alone runs one side in a process whose driver finds its caches empty.
func alone(t *testing.T, test, side string) map[string]grown {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^"+test+"$", "-test.timeout=0", "-side="+side, fmt.Sprintf("-long=%v", *long))
	cmd.Env = append(cmd.Environ(), "MESA_SHADER_CACHE_DISABLE=true")
	text, err := cmd.CombinedOutput()
	_, after, _ := strings.Cut(string(text), "<<")
	said, _, _ := strings.Cut(after, ">>")
	var parts map[string]grown
	if err == nil {
		err = json.Unmarshal([]byte(said), &parts)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", side, err, text)
	}
	return parts
}

// live prints what each part of a life left.
func (s Subject) live(t *testing.T) {
	calls, err := s.Driver, error(nil)
	if *side == "kiln" {
		calls = s.kiln
	}
	c, err := calls()
	if err != nil {
		t.Fatal(err)
	}
	rounds := []int{2000, 4, 10}
	if *long {
		rounds = []int{100_000, 1000, 1000}
	}
	parts := make(map[string]grown)
	for i, part := range []struct {
		name string
		once func(i int) error
	}{{"launches", func(int) error { return c.Launch() }}, {"compiles", c.Compile}, {"opens", func(int) error { return c.Open() }}} {
		objects, before := s.Objects(), int64(0)
		g := grown{Rounds: rounds[i]}
		first := max(1, g.Rounds/10) // caches of the driver and of the allocators fill
		for n := range first + g.Rounds {
			if n == first {
				before = resident(t)
			}
			if err := part.once(n); err != nil {
				t.Fatal(err)
			}
		}
		g.All = resident(t)
		g.Bytes, g.Objects = g.All-before, s.Objects()-objects
		parts[part.name] = g
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.Objects(); n != 0 {
		t.Errorf("%d objects of the driver are left", n)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("<<%s>>", text)
}

// resident is the memory of this process in bytes, less what Go can do without.
func resident(t *testing.T) int64 {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// kiln makes the calls by an executor, and compiles by a cache of one artefact.
func (s Subject) kiln() (c Calls, err error) {
	open := func() (*gpuexec.Executor, error) {
		return gpuexec.Open(background, gpuexec.Config{Backend: s.Backend, Workers: 1})
	}
	e, err := open()
	if err != nil {
		return c, err
	}
	cache, err := artefacts.Open(artefacts.Config{Entries: limit.Of(1)})
	if err != nil {
		return c, err
	}
	b, err := e.Alloc(background, 1024)
	if err != nil {
		return c, err
	}
	args := s.Args(b)
	launch := func(k *gpuexec.Kernel) error {
		return e.Submit(background, gpuexec.Launch{Kernel: k, Grid: gpuexec.Size{1}, Args: args})
	}
	kernel, err := e.Compile(background, s.Source(-1))
	if err != nil {
		return c, err
	}
	c.Launch = func() error { return launch(kernel) }
	c.Compile = func(i int) error {
		src := s.Source(i)
		request := artefacts.OfKernel(e, src)
		request.Key = src.Key
		lease, _, err := cache.Get(background, request)
		if err != nil {
			return err
		}
		defer lease.End()
		return launch(lease.Value().(*gpuexec.Kernel))
	}
	c.Open = func() error {
		e, err := open()
		if err != nil {
			return err
		}
		return e.Close(background)
	}
	c.Close = func() error {
		kernel.Release()
		b.Release()
		if err := cache.Close(background); err != nil {
			return err
		}
		return e.Close(background)
	}
	return c, nil
}
