//go:build unix

package pipelinefile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/pipelinefile"
	"github.com/kiln-cache/kiln/internal/layout"
)

// SPEC V1, V3: what was saved is found again, in every form of saving.
func TestRoundTrip(t *testing.T) {
	v := open(t)
	v.shader("s1", "source-1")
	v.shader("s2", "source-2")
	v.built("s1")
	v.get(pipelinefile.Request{Shader: "s2", Options: 5}, pipelinefile.Built)
	v.get(pipelinefile.Request{Shader: "s1"}, pipelinefile.Hit)
	path := filepath.Join(t.TempDir(), "f")
	saved := v.save(path)
	var stream bytes.Buffer
	if s, err := v.SaveTo(t.Context(), &stream); err != nil || s != saved {
		t.Errorf("%+v, %v; by path %+v", s, err, saved)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("%d files, want the one saved", len(list))
	}
	onDisk, err := os.ReadFile(path)
	if err != nil || int64(len(onDisk)) != saved.Bytes {
		t.Errorf("%d bytes, %v, want %d", len(onDisk), err, saved.Bytes)
	}
	for name, load := range map[string]func(*rig) (pipelinefile.Loaded, error){
		"path":  func(w *rig) (pipelinefile.Loaded, error) { return w.Load(t.Context(), path) },
		"bytes": func(w *rig) (pipelinefile.Loaded, error) { return w.LoadBytes(t.Context(), onDisk) },
		"reader": func(w *rig) (pipelinefile.Loaded, error) {
			return w.LoadFrom(t.Context(), iotest.OneByteReader(&stream))
		},
	} {
		w := open(t)
		w.shader("s1", "source-1")
		w.shader("s2", "source-2")
		if l, err := load(w); err != nil || l != (pipelinefile.Loaded{Entries: 2, Blob: true}) {
			t.Errorf("by %s: %+v, %v", name, l, err)
		}
		w.counts("spirv", int64(w.SPIRV()), 2)
		w.counts("live", int64(w.Len()), 0)
		w.get(pipelinefile.Request{Shader: "s1"}, pipelinefile.SPIRV)
		w.get(pipelinefile.Request{Shader: "s2", Options: 5}, pipelinefile.SPIRV)
		w.get(pipelinefile.Request{Shader: "s2", Options: 6}, pipelinefile.Built)
		w.counts("frontend", w.front.compiled.Load(), 1)
	}
}

// sample is a sound file with two entries and a blob.
func sample(t testing.TB) []byte {
	v := open(t)
	v.shader("s1", "a")
	v.shader("s2", "b")
	v.built("s1", "s2")
	return v.bytes()
}

// SPEC V2, V1: any flipped bit and any shorter or longer file is a miss.
func TestDamage(t *testing.T) {
	file := sample(t)
	v := open(t)
	v.shader("s1", "a")
	v.shader("s2", "b")
	for i := range file {
		for bit := range 8 {
			file[i] ^= 1 << bit
			v.misses(file, "*", "*")
			file[i] ^= 1 << bit
		}
	}
	for n := range file {
		v.misses(file[:n], "*", "")
	}
	for _, more := range []int{1, 4096} {
		v.misses(append(bytes.Clone(file), make([]byte, more)...), "trailing", "")
	}
	v.counts("shown to the driver", v.driver.opened.Load(), 0) // V4
	file[0] ^= 1
	v.misses(file, "format", "")
	file[0] ^= 1
	v.misses(nil, "truncated", "")
	v.misses([]byte("something else"), "format", "")
	if l, err := v.LoadBytes(t.Context(), file); err != nil || l.Entries != 2 || !l.Blob {
		t.Errorf("the sound file: %+v, %v", l, err)
	}
	m := v.Stats()
	for _, reason := range []string{"format", "truncated", "trailing", "checksum"} { // R1
		if m.Reasons[reasonOf(reason)] == 0 {
			t.Errorf("no miss counted as %s", reason)
		}
	}
}

// SPEC V2: each identity field alone, the digests right.
func TestIdentity(t *testing.T) {
	file := sample(t)
	v := open(t)
	v.shader("s1", "a")
	v.built("s1")
	other := pipelinefile.UUID{99}
	for field, c := range map[string]struct {
		reason string
		change func(*pipelinefile.Identity)
	}{
		"library":     {"outdated", func(i *pipelinefile.Identity) { i.Library = "other" }},
		"api":         {"outdated", func(i *pipelinefile.Identity) { i.API++ }},
		"driver":      {"outdated", func(i *pipelinefile.Identity) { i.Driver++ }},
		"driver_id":   {"outdated", func(i *pipelinefile.Identity) { i.DriverID++ }},
		"driver_name": {"outdated", func(i *pipelinefile.Identity) { i.DriverName = "other" }},
		"driver_info": {"outdated", func(i *pipelinefile.Identity) { i.DriverInfo = "" }},
		"driver_uuid": {"outdated", func(i *pipelinefile.Identity) { i.DriverUUID = other }},
		"vendor":      {"device_mismatch", func(i *pipelinefile.Identity) { i.Vendor++ }},
		"device":      {"device_mismatch", func(i *pipelinefile.Identity) { i.Device++ }},
		"device_name": {"device_mismatch", func(i *pipelinefile.Identity) { i.DeviceName = "other" }},
		"uuid":        {"device_mismatch", func(i *pipelinefile.Identity) { i.UUID = other }},
		"device_uuid": {"device_mismatch", func(i *pipelinefile.Identity) { i.DeviceUUID = other }},
	} {
		forged, err := layout.Impersonate(file, func(id *layout.Identity) { c.change((*pipelinefile.Identity)(&id.Machine)) })
		if err != nil {
			t.Fatal(err)
		}
		v.misses(forged, c.reason, field)

		id := machine() // and a real other machine
		c.change(&id)
		if id.Library == "" {
			continue
		}
		w := open(t, withIdentity(id))
		w.shader("s1", "a")
		w.misses(file, c.reason, field)
		w.counts(c.reason, w.Stats().Reasons[reasonOf(c.reason)], 1)
	}
	v.counts("shown to the driver", v.driver.opened.Load(), 0)
}

// SPEC V2: of two openings that do not know their build none takes the other's
// file, since it may be another build's.
func TestUnknownBuild(t *testing.T) {
	for _, field := range []string{"library", "driver", "driver_info"} {
		id := machine()
		id.Unknown = []string{field}
		v := open(t, withIdentity(id))
		v.shader("s", "a")
		v.built("s")
		file := v.bytes()
		w := open(t, withIdentity(id))
		w.misses(file, "outdated", field)
		known := open(t)
		known.misses(file, "outdated", field)
		if l, err := v.LoadBytes(t.Context(), file); err != nil || l.Reason != "" {
			t.Errorf("its own file: %+v, %v", l, err)
		}
	}
	id := machine()
	id.Library = ""
	v, w := open(t, withIdentity(id)), open(t, withIdentity(id))
	w.misses(v.bytes(), "outdated", "library")
}

// SPEC V1, V2: counts and lengths that do not agree, the digests right.
func TestForged(t *testing.T) {
	file := sample(t)
	v := open(t)
	v.shader("s1", "a")
	v.shader("s2", "b")
	for _, c := range []struct {
		field  string
		value  uint64
		reason string
	}{
		{"format", 99, "format"},
		{"entries", 0, "trailing"}, {"entries", 1, "trailing"}, {"entries", 3, "truncated"}, {"entries", 1<<32 - 1, "truncated"},
		{"entry.size", 0, "format"}, {"entry.size", 5, "format"}, {"entry.size", 1 << 30, "truncated"}, {"entry.size", 1<<32 - 4, "truncated"},
		{"entry.duplicate", 0, "format"},
		{"blob.headerlen", 31, "driver_header"}, {"blob.headerlen", 33, "driver_header"}, {"blob.headerlen", 1000000, "driver_header"}, {"blob.version", 2, "driver_header"},
		{"blob.vendor", 1, "driver_header"}, {"blob.device", 1, "driver_header"}, {"blob.uuid", 77, "driver_header"}, // V4
	} {
		forged, err := layout.Forge(file, c.field, c.value)
		if err != nil {
			t.Fatal(err)
		}
		v.misses(forged, c.reason, "*")
	}
	v.counts("shown to the driver", v.driver.opened.Load(), 0)
	v.counts("merged", v.driver.merged.Load(), 0)
}

// SPEC V3: a changed shader takes only its own entries along, one that is not
// known is ignored.
func TestChangedShaders(t *testing.T) {
	v := open(t)
	for _, n := range []string{"a", "b", "x"} {
		v.shader(n, "source-"+n)
		v.built(n)
	}
	path := filepath.Join(t.TempDir(), "f")
	v.save(path)
	w := open(t)
	w.shader("a", "source-a")
	w.shader("b", "changed")
	w.shader("x", "source-x")
	w.load(path, 2, true)
	w.counts("source_changed", w.Stats().Reasons[reasonOf("source_changed")], 1)
	w.get(pipelinefile.Request{Shader: "a"}, pipelinefile.SPIRV)
	w.built("b")
	w.get(pipelinefile.Request{Shader: "x"}, pipelinefile.SPIRV)
	w.counts("frontend", w.front.compiled.Load(), 1)

	w.shader("a", "new") // its entry goes, the others stay
	w.counts("spirv", int64(w.SPIRV()), 2)
	w.built("a")

	x := open(t)
	x.load(path, 0, true)
	x.shader("b", "source-b")
	x.load(path, 1, true)
	if _, _, err := x.Get(t.Context(), pipelinefile.Request{Shader: "a"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a shader that is not registered: %v", err)
	}
	if err := x.Unregister("b"); err != nil {
		t.Error(err)
	}
	if _, _, err := x.Get(t.Context(), pipelinefile.Request{Shader: "b"}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a shader that was forgotten: %v", err)
	}
	if err := x.Unregister("b"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
}

// SPEC V4, V5: what the driver refuses leaves nothing behind.
func TestDriverRefuses(t *testing.T) {
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	file := v.bytes()
	for _, fail := range []string{"create", "merge"} {
		w := open(t)
		w.shader("s", "a")
		w.shader("t", "b")
		w.built("t")
		w.driver.refuse.Store(fail == "create")
		w.driver.failMerge.Store(fail == "merge")
		w.misses(file, "driver_refused", "")
		w.counts("driver caches", w.driver.caches.Load(), 1)
		w.get(pipelinefile.Request{Shader: "t"}, pipelinefile.Hit)
		w.built("s")
		w.driver.refuse.Store(false)
		w.driver.failMerge.Store(false)
		if l, err := w.LoadBytes(t.Context(), file); err != nil || l.Reason != "" || !l.Blob {
			t.Errorf("%s: %+v, %v", fail, l, err)
		}
		w.counts("driver caches", w.driver.caches.Load(), 1)
	}
}

// SPEC V5: the second file wins, else the union; twice changes nothing.
func TestLoadMerges(t *testing.T) {
	dir := t.TempDir()
	f, g := filepath.Join(dir, "f"), filepath.Join(dir, "g")
	v := open(t)
	v.shader("a", "1")
	v.shader("b", "2")
	v.built("a", "b")
	v.save(f)
	w := open(t)
	w.shader("b", "2")
	w.shader("x", "3")
	w.built("b", "x")
	w.save(g)
	z := open(t)
	for name, source := range map[string]string{"a": "1", "b": "2", "x": "3"} {
		z.shader(name, source)
	}
	z.load(f, 2, true)
	z.counts("spirv", int64(z.SPIRV()), 2)
	for range 4 {
		z.load(g, 2, true)
		z.counts("spirv", int64(z.SPIRV()), 3)
	}
	decoded, miss, err := layout.Decode(int64(len(z.bytes())), layout.Bytes(z.bytes()), nil) // before a build adds to them
	if err != nil || miss.Reason != "" || bytes.Count(decoded.Blob, []byte("\n")) != 3 {
		t.Errorf("the driver's caches were not joined: %v %v %q", err, miss, decoded.Blob)
	}
	for _, n := range []string{"a", "b", "x"} {
		z.get(pipelinefile.Request{Shader: n}, pipelinefile.SPIRV)
	}
	z.counts("frontend", z.front.compiled.Load(), 0)
}

// SPEC P13: a file that another user owns or can write is not given to the driver, nor is
// it joined or replaced, whatever link leads to it. What is saved nobody else can read.
func TestSomebodyElses(t *testing.T) {
	dir := t.TempDir()
	path, link, second := filepath.Join(dir, "f"), filepath.Join(dir, "link"), filepath.Join(dir, "second")
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	if err := os.Symlink("f", link); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		field string
		spoil func() error
	}{
		"the group can write":  {"mode", func() error { return os.Chmod(path, 0o620) }},
		"all can write":        {"mode", func() error { return os.Chmod(path, 0o602) }},
		"another user's":       {"owner", func() error { return os.Chown(path, 65534, -1) }},
		"a name of another's":  {"owner", func() error { return errors.Join(os.Chown(path, 65534, -1), os.Link(path, second)) }},
		"read by all is sound": {"", func() error { return errors.Join(os.Link(path, second), os.Chmod(path, 0o644)) }},
	} {
		if c.field == "owner" && os.Getuid() != 0 {
			continue
		}
		v.save(path)
		info, err := os.Stat(path)
		if err := errors.Join(err, c.spoil()); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, saved with %v", what, err, info.Mode())
		}
		was, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		want := fault.Reason("")
		if c.field != "" {
			want = fault.Degraded
		}
		for _, at := range []string{path, link} {
			if l, err := v.Load(t.Context(), at); err != nil || l.Reason != want || l.Field != c.field {
				t.Errorf("%s at %s: %+v, %v", what, at, l, err)
			}
			if _, err := v.Save(t.Context(), at); errors.Is(err, fault.ErrIO) != (want != "") {
				t.Errorf("%s at %s: joined with it: %v", what, at, err)
			}
			if is, err := os.Stat(path); err != nil || want != "" && !os.SameFile(is, was) {
				t.Errorf("%s at %s: replaced: %v", what, at, err)
			}
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(second) // not all have one
	}
}

// SPEC V1: whatever lies at the path, loading says why it is no use.
func TestStrangePaths(t *testing.T) {
	dir := t.TempDir()
	v := open(t)
	v.shader("s", "a")
	v.built("s")
	sound := filepath.Join(dir, "sound")
	v.save(sound)
	fifo, link, circle, lost := filepath.Join(dir, "fifo"), filepath.Join(dir, "link"), filepath.Join(dir, "circle"), filepath.Join(dir, "lost")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink("sound", link), os.Symlink("circle", circle), os.Symlink("no/such/f", lost)); err != nil {
		t.Fatal(err)
	}
	for path, reason := range map[string]string{
		dir: "format", fifo: "format", circle: "degraded", lost: "absent", link: "",
		filepath.Join(dir, "absent"): "absent", filepath.Join(dir, "no", "such", "f"): "absent", filepath.Join(sound, "below"): "degraded",
	} {
		if l, err := v.Load(t.Context(), path); err != nil || string(l.Reason) != reason {
			t.Errorf("%s: %+v, %v, want %q", path, l, err, reason)
		}
	}
	for _, path := range []string{dir, fifo, circle, lost, filepath.Join(dir, "no", "such", "f")} {
		if _, err := v.Save(t.Context(), path); !errors.Is(err, fault.ErrIO) {
			t.Errorf("save to %s: %v", path, err)
		}
	}
	v.save(link)
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the user's link was replaced: %v", err)
	}
	// links to what is not there yet are followed as well
	for name, to := range map[string]string{"relative": "new", "absolute": filepath.Join(dir, "new"), "twice": "relative"} {
		link := filepath.Join(dir, name)
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		if l, err := v.Load(t.Context(), link); err != nil || l.Reason != "absent" {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	for _, name := range []string{"relative", "absolute", "twice"} {
		v.save(filepath.Join(dir, name))
		v.load(filepath.Join(dir, "new"), 1, true)
		if err := os.Remove(filepath.Join(dir, "new")); err != nil {
			t.Errorf("by the link %s: %v", name, err)
		}
	}
	for _, err := range []error{second(v.Load(t.Context(), "")), second(v.Save(t.Context(), "")), second(v.LoadFrom(t.Context(), nil)), second(v.SaveTo(t.Context(), nil))} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v, want an invalid argument", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }
