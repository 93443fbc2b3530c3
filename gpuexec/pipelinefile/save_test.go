//go:build unix

package pipelinefile_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

func reasonOf(word string) fault.Reason { return fault.Reason(word) }

// allocated is how many bytes f allocates, other goroutines included.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// faulty makes the file system ask op before each operation.
func faulty(op func(string) error) option {
	return func(c *setup) {
		c.fs = func(root string) vfs.FS { return vfs.Watch(vfs.Dir(root), op) }
	}
}

func noMerge(c *setup) { c.NoMerge = true }

func files(t testing.TB, dir string) int {
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// SPEC V6: whichever operation of a save fails, the old file is as it was and
// nothing else is left, and once it cannot fail any more the new file is there.
func TestSaveFaults(t *testing.T) {
	for _, merging := range []bool{true, false} {
		for _, existing := range []bool{true, false} {
			t.Run(fmt.Sprintf("merge=%v existing=%v", merging, existing), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "f")
				var at, count int
				var failed string
				options := []option{faulty(func(op string) error {
					if count++; count == at {
						failed = op
						return syscall.ENOSPC
					}
					return nil
				})}
				if !merging {
					options = append(options, noMerge)
				}
				v := open(t, options...)
				v.shader("s", "a")
				v.built("s")
				var old []byte
				if existing {
					v.save(path)
					old, _ = os.ReadFile(path)
				}
				v.shader("t", "b")
				v.built("t")
				for at = 1; ; at++ {
					count, failed = 0, ""
					_, err := v.Save(t.Context(), path)
					if failed == "" || failed == "open" && err == nil { // past the end, or the sweep's listing
						break
					}
					if !errors.Is(err, fault.ErrIO) || !errors.Is(err, syscall.ENOSPC) {
						t.Fatalf("operation %d (%s): %v", at, failed, err)
					}
					now, _ := os.ReadFile(path)
					if failed == "syncdir" { // the new one is in place
						os.Remove(path)
						if existing {
							os.WriteFile(path, old, 0o600)
						}
					} else if !bytes.Equal(now, old) {
						t.Fatalf("operation %d (%s) failed and changed the file", at, failed)
					}
					if want := map[bool]int{true: 1, false: 0}[existing]; files(t, filepath.Dir(path)) != want {
						t.Fatalf("operation %d (%s) failed and left files", at, failed)
					}
				}
				if at < 5 {
					t.Fatalf("a save of %d operations cannot be synced", at-1)
				}
				v.load(path, 2, true)
			})
		}
	}
}

// dead is a file system on which nothing happens any more from some operation
// on, as if the process had been killed there.
type dead struct {
	vfs.FS
	gone *atomic.Bool
}

func (d dead) Remove(name string) error {
	if d.gone.Load() {
		return syscall.EIO
	}
	return d.FS.Remove(name)
}

// SPEC V6: killed at any operation, the target is the old file or the new one,
// and what is left beside it is swept after an hour.
func TestSaveKilled(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	var count, at int
	var gone atomic.Bool
	die := func(string) error {
		if count++; at > 0 && count >= at {
			gone.Store(true)
			return syscall.EIO
		}
		return nil
	}
	now := time.Now()
	v := open(t, func(c *setup) {
		c.fs = func(root string) vfs.FS { return vfs.Watch(dead{vfs.Dir(root), &gone}, die) }
		c.Now = func() time.Time { return now }
	})
	v.shader("s", "a")
	v.built("s")
	v.save(path)
	left := 0
	for at = 1; ; at++ {
		v.shader("t", fmt.Sprint("b", at))
		v.get(pipelinefile.Request{Shader: "t"}, pipelinefile.Built)
		count = 0
		gone.Store(false)
		_, err := v.Save(t.Context(), path)
		if !gone.Load() {
			break
		}
		file, _ := os.ReadFile(path)
		if _, miss, _ := layout.Decode(int64(len(file)), layout.Bytes(file), nil); miss.Reason != "" {
			t.Fatalf("killed at operation %d (%v): %s", at, err, miss)
		}
		left = max(left, files(t, dir)-1)
	}
	if left == 0 {
		t.Error("no kill left a temporary file: the test kills nothing")
	}
	at = 0
	now = now.Add(time.Hour + time.Minute)
	v.save(path)
	if n := files(t, dir); n != 1 {
		t.Errorf("%d files after an hour, want one", n)
	}
}

// SPEC V6: a driver that cannot deliver its blob does not stop a save, and does
// not cost what an earlier one delivered.
func TestNoDelivery(t *testing.T) {
	dir := t.TempDir()
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	v.driver.failBlob.Store(true)
	if s := v.save(filepath.Join(dir, "f")); s.Blob {
		t.Error("a blob from nowhere")
	}
	w := open(t)
	w.shader("s", "a")
	w.load(filepath.Join(dir, "f"), 1, false)
	w.get(pipelinefile.Request{Shader: "s"}, pipelinefile.SPIRV)
	w.save(filepath.Join(dir, "f"))
	v.save(filepath.Join(dir, "f"))
	w.load(filepath.Join(dir, "f"), 1, true)
}

// SPEC V6: a driver's own blob that does not fit its device is not written.
func TestForeignDelivery(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	v.driver.id.Vendor++
	if _, s, err := v.SaveBytes(t.Context()); err != nil || s.Blob || s.Entries != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

// SPEC V6: with merging, entries of shaders that this process does not know stay
// and those of a changed source go; without, the last save stands alone.
func TestMergeOnSave(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	v := open(t)
	v.shader("a", "1")
	v.shader("b", "2")
	v.built("a", "b")
	v.save(path)
	w := open(t)
	w.shader("b", "changed")
	w.shader("x", "3")
	w.built("x")
	if s := w.save(path); s.Entries != 2 {
		t.Errorf("%d entries, want a and x", s.Entries)
	}
	v.shader("x", "3")
	v.shader("b", "2")
	v.load(path, 2, true)
	decoded := decode(t, path)
	if n := bytes.Count(decoded.Blob, []byte("\n")); n != 3 {
		t.Errorf("the driver's blob has %d pipelines, want those of both processes", n)
	}
	alone := open(t, noMerge)
	alone.shader("z", "4")
	alone.built("z")
	if s := alone.save(path); s.Entries != 1 {
		t.Errorf("%d entries, want only its own", s.Entries)
	}
	if err := os.WriteFile(path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := w.save(path); s.Entries != 1 { // what cannot be used is replaced
		t.Errorf("%d entries over garbage", s.Entries)
	}
	// V9: a union above the limit gives way to what this process needs itself
	tight := open(t, func(c *setup) { c.Limit = limit.Of(int64(len(v.bytes()))) })
	tight.shader("y", "5")
	tight.built("y")
	v.save(path)
	if s := tight.save(path); s.Entries != 1 {
		t.Errorf("%d entries above the limit", s.Entries)
	}
}

func decode(t testing.TB, path string) *layout.File {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, miss, err := layout.Decode(int64(len(file)), layout.Bytes(file), nil)
	if err != nil || miss.Reason != "" {
		t.Fatal(miss, err)
	}
	return f
}

// SPEC V6: many that save to one path at once reach the union. The lock is of
// open files, so several caches stand for several processes.
func TestUnion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	const savers, each = 8, 4
	rigs := make([]*rig, savers)
	for i := range rigs {
		rigs[i] = open(t)
	}
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i, v := range rigs {
		wg.Go(func() {
			<-start
			for j := range each {
				name := fmt.Sprint("s", i*each+j)
				if err := v.Register(name, []byte(name)); err != nil {
					t.Error(err)
				}
				l, _, err := v.Get(t.Context(), pipelinefile.Request{Shader: name})
				if err != nil {
					t.Error(err)
					return
				}
				l.End()
				if _, err := v.Save(t.Context(), path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	decoded := decode(t, path)
	if len(decoded.Entries) != savers*each || bytes.Count(decoded.Blob, []byte("\n")) != savers*each {
		t.Errorf("%d entries and %d pipelines, want %d", len(decoded.Entries), bytes.Count(decoded.Blob, []byte("\n")), savers*each)
	}
	if n := files(t, filepath.Dir(path)); n != 1 {
		t.Errorf("%d files, want 1", n)
	}
}

// SPEC V1: trouble of reading is a miss with a reason, and keeps a joining save
// from writing over what it could not read.
func TestUnreadable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var broken string
	v := open(t, faulty(func(op string) error {
		if op == broken {
			return syscall.EIO
		}
		return nil
	}))
	v.shader("s", "a")
	v.built("s")
	v.save(path)
	for _, broken = range []string{"open", "read"} {
		if l, err := v.Load(t.Context(), path); err != nil || l.Reason != fault.Degraded {
			t.Errorf("%s: %+v, %v", broken, l, err)
		}
		if _, err := v.Save(t.Context(), path); !errors.Is(err, fault.ErrIO) {
			t.Errorf("%s: %v", broken, err)
		}
	}
}

// SPEC V6: content before name, name before its folder.
func TestSaveOrder(t *testing.T) {
	for _, existing := range []bool{false, true} {
		var ops []string
		v := open(t, faulty(func(op string) error { ops = append(ops, op); return nil }))
		path := filepath.Join(t.TempDir(), "f")
		if existing {
			v.save(path)
		}
		ops = nil
		v.save(path)
		at := func(op string) int { return slices.Index(ops, op) }
		if !(at("write") < at("sync") && at("sync") < at("rename") && at("rename") < at("syncdir")) || at("write") < 0 {
			t.Errorf("existing=%v: %v", existing, ops)
		}
	}
}
