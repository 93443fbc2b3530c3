//go:build unix

package pipelinefile_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
)

// SPEC V8: on a known-bad driver no driver cache is made, loaded or stored, and
// live objects do not pile up.
func TestQuirkOff(t *testing.T) {
	bad := machine()
	bad.Vendor, bad.API = 0x5143, version(1, 0, 65)
	v := open(t, withIdentity(bad))
	v.shader("s", "a")
	for range 100 {
		v.get(pipelinefile.Request{Shader: "s"}, "")
	}
	v.counts("live", int64(v.Len()), 1)
	v.counts("driver caches", v.driver.caches.Load(), 0)
	if v.DriverCache() {
		t.Error("the driver cache is on")
	}
	file := v.bytes()
	w := open(t, withIdentity(bad))
	w.shader("s", "a")
	if l, err := w.LoadBytes(t.Context(), file); err != nil || l != (pipelinefile.Loaded{Entries: 1}) {
		t.Errorf("%+v, %v", l, err)
	}
	careless := open(t, withIdentity(bad), func(c *setup) { c.Quirks = []pipelinefile.Quirk{} })
	careless.shader("s", "a")
	careless.built("s")
	if l, err := w.LoadBytes(t.Context(), careless.bytes()); err != nil || l != (pipelinefile.Loaded{Entries: 1}) {
		t.Errorf("a file with a blob: %+v, %v", l, err)
	}
	w.counts("quirk", w.Stats().Reasons["quirk"], 1)
	w.counts("shown to the driver", w.driver.opened.Load(), 0)

	const variant = 5 << 29 // of the API: says nothing of age
	for _, c := range []struct {
		vendor, api uint32
		on          bool
	}{
		{0x5143, version(1, 0, 65), false}, {0x5143, version(1, 0, 66), true}, {0x5143, version(1, 1, 0), true}, {0x5144, version(1, 0, 65), true},
		{0x5143, variant | version(1, 0, 65), false}, {0x5143, variant | version(1, 0, 66), true},
	} {
		id := machine()
		id.Vendor, id.API = c.vendor, c.api
		if on := open(t, withIdentity(id)).DriverCache(); on != c.on {
			t.Errorf("%+v: on=%v", c, on)
		}
	}
}

// SPEC V8: of several rows that match Off wins, wherever it stands.
func TestQuirkOffWins(t *testing.T) {
	off := pipelinefile.Quirk{Vendor: "0x10de", Effect: pipelinefile.Off, Why: "test"}
	serialise := pipelinefile.Quirk{Vendor: "0x10de", Effect: pipelinefile.Serialise, Why: "test"}
	for _, table := range [][]pipelinefile.Quirk{{off, serialise}, {serialise, off}} {
		if open(t, func(c *setup) { c.Quirks = table }).DriverCache() {
			t.Errorf("%+v: the driver cache is on", table)
		}
	}
}

// SPEC V8: a driver that does not synchronise itself sees one call at a time.
func TestQuirkSerialise(t *testing.T) {
	id := machine()
	id.Vendor, id.DriverID = 0x1002, 1
	v := open(t, withIdentity(id))
	if !v.DriverCache() {
		t.Error("the driver cache is off")
	}
	v.driver.during(func(context.Context, pipelinefile.Module) error { runtime.Gosched(); return nil })
	v.shader("s", "a")
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() { v.get(pipelinefile.Request{Shader: "s", Options: uint64(i)}, "") })
	}
	wg.Wait()
	v.Clear()
	v.bytes() // while idle pipelines are destroyed
	v.counts("calls at once", v.driver.most.Load(), 1)
}

// SPEC V8, V7: destroying is a call as well. Who ends a lease or closes does not
// wait for the driver's other calls; Close waits for what it has to destroy.
func TestQuirkSerialiseDestroying(t *testing.T) {
	file := sample(t)
	d := &rough{}
	v := roughly(t, d, func(c *setup) {
		c.Quirks = []pipelinefile.Quirk{{Vendor: "0x10de", Effect: pipelinefile.Serialise, Why: "test"}}
	})
	var leases []*pipelinefile.Lease
	for _, name := range []string{"a", "b"} {
		v.shader(name, name)
		l, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: name})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	v.Clear()
	begun, gate, loading := make(chan struct{}), make(chan struct{}), make(chan error)
	d.open = func([]byte) error { close(begun); <-gate; return nil }
	go func() { loading <- second(v.LoadBytes(t.Context(), file)) }()
	<-begun
	leases[0].End()
	ended, stop := context.WithCancel(t.Context())
	stop()
	if err := v.Close(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("closed while something waits to be destroyed: %v", err)
	}
	v.counts("pipelines that wait or are leased", d.alive.Load(), 2)
	v.counts("driver caches that wait", d.caches.Load(), 1)
	close(gate)
	if err := <-loading; !errors.Is(err, fault.ErrClosed) {
		t.Errorf("a load that was overtaken by Close: %v", err)
	}
	if err := v.Close(t.Context()); err != nil {
		t.Error(err)
	}
	v.counts("driver caches", d.caches.Load(), 0)
	v.counts("leased pipelines", d.alive.Load(), 1)
	leases[1].End()
	v.counts("pipelines", d.alive.Load(), 0)
	v.counts("calls at once", d.most.Load(), 1)
}

// SPEC V8: the table is read strictly.
func TestQuirkTable(t *testing.T) {
	first := pipelinefile.Quirks()[0]
	if first.Vendor != "0x5143" || first.APIBelow != "1.0.66" || first.Effect != pipelinefile.Off {
		t.Errorf("the first row is %+v", first)
	}
	const row = `{"vendor":"0x5143","api_below":"1.0.66","effect":"off","why":"x"}`
	if rows, err := pipelinefile.ParseQuirks([]byte("[" + row + "]")); err != nil || len(rows) != 1 {
		t.Errorf("%v, %v", rows, err)
	}
	for _, table := range []string{
		"", "{}", row, "[" + row + "] x", "[" + row + "][]", "[" + row,
		"[" + strings.Replace(row, `"why"`, `"whi"`, 1) + "]", "[" + strings.Replace(row, `"x"`, `" "`, 1) + "]",
		"[" + strings.Replace(row, "0x5143", "20803", 1) + "]", "[" + strings.Replace(row, "0x5143", "0x1ffffffff", 1) + "]",
		"[" + strings.Replace(row, "1.0.66", "1.0", 1) + "]", "[" + strings.Replace(row, "1.0.66", "1.-1.6", 1) + "]",
		"[" + strings.Replace(row, "1.0.66", "1.0.4096", 1) + "]", "[" + strings.Replace(row, `"off"`, `"never"`, 1) + "]",
	} {
		if _, err := pipelinefile.ParseQuirks([]byte(table)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want it refused", table, err)
		}
	}
}

// Every mistake of a config is named, and none opens a cache.
func TestConfig(t *testing.T) {
	bad := machine()
	bad.DriverInfo = strings.Repeat("x", 2000)
	bad.Unknown = []string{"colour"}
	_, err := pipelinefile.Open(t.Context(), pipelinefile.Config{Identity: bad, Patience: -1, Quirks: []pipelinefile.Quirk{{}}})
	if !errors.Is(err, fault.ErrInvalid) {
		t.Fatal(err)
	}
	for _, part := range []string{"driver", "driver_info", "patience", "vendor"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not speak of %s", err, part)
		}
	}
	v := open(t, func(c *setup) { c.FrontEnd = nil })
	v.shader("s", "a")
	if _, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: "s"}); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("without a front end: %v", err)
	}
	file, err := layout.Encode(&layout.File{Identity: layout.Identity{Machine: layout.Machine(machine())}})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := v.LoadBytes(t.Context(), file); err != nil || l != (pipelinefile.Loaded{}) {
		t.Errorf("an empty file: %+v, %v", l, err)
	}
}

// F5: a build that asks for another pipeline, where the driver's calls come one at a
// time, would wait for its own call: ErrCycle, and others go on.
func TestNestedBuildOfASerialisedDriver(t *testing.T) {
	for _, waits := range []bool{false, true} { // somebody else's build of that one has begun
		r := open(t, func(c *setup) {
			c.Quirks = []pipelinefile.Quirk{{Vendor: "0x10de", Effect: pipelinefile.Serialise, Why: "test"}}
		})
		r.shader("base", "b")
		r.shader("derived", "d")
		entered, goOn := make(chan struct{}), make(chan struct{})
		r.driver.during(func(ctx context.Context, m pipelinefile.Module) error {
			if m.Shader != "derived" {
				return nil
			}
			close(entered)
			<-goOn
			_, _, err := r.Get(ctx, pipelinefile.Request{Shader: "base"})
			return err
		})
		derived, base := make(chan error, 1), make(chan struct{})
		go func() {
			_, _, err := r.Get(t.Context(), pipelinefile.Request{Shader: "derived"})
			derived <- err
		}()
		<-entered
		go func() {
			defer close(base)
			if waits {
				r.get(pipelinefile.Request{Shader: "base"}, "")
			}
		}()
		close(goOn)
		select {
		case err := <-derived:
			if !errors.Is(err, fault.ErrCycle) {
				t.Errorf("got %v, want ErrCycle", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no answer within 10 s")
		}
		<-base
		r.get(pipelinefile.Request{Shader: "base"}, "")
	}
}
