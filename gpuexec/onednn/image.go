package onednn

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
	"github.com/kiln-cache/kiln/internal/processor"
)

// image is the library's file in this process. There is one, which is never unloaded:
// two versions would share what C++ makes unique in a process.
type image struct {
	lib     uintptr
	tables  bindings
	path    string
	build   string
	sets    func(threads int32) // of OpenMP, for the calling thread; nil: it begins with one
	openMP  string
	version string
	newer   bool // 3.6 or later
	runtime string
}

var loaded struct {
	sync.Mutex
	image *image
	asked string // the path that it was loaded by
}

// sonames are tried in turn: of 3.x, of 3.x in Debian 13 and later, and of 2.x.
var sonames = []string{"libdnnl.so.3", "libdnnl.so.3.6", "libdnnl.so.2"}

// load loads the file of that path, once a process. Without a path it is what is loaded, else
// the first that is installed.
func load(path string) (*image, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if im := loaded.image; im != nil && path == loaded.asked { // its file may have gone since
		return im, nil
	}
	if err := isLibrary(path); err != nil {
		return nil, failure("open", fault.ErrUnavailable, "%v: want the file of a oneDNN, such as libdnnl.so.3, in KILN_ONEDNN_LIBRARY, or %s", err, install)
	}
	if loaded.image != nil {
		if path != "" && !sameFile(path, loaded.image.path) {
			return nil, fault.Invalidf("onednn: open", "%s: this process has loaded %s already: use another process", path, loaded.image.path)
		}
		return loaded.image, nil
	}
	for _, set := range [][2]string{{"OMP_NUM_THREADS", "1"}, {"ONEDNN_VERBOSE", "none"}} { // read when it is loaded
		if err := os.Setenv(set[0], set[1]); err != nil {
			return nil, unavailable(err)
		}
	}
	names := sonames
	if path != "" {
		names = []string{path}
	}
	var errs []error
	for _, name := range names {
		lib, err := dlopen(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		im, err := newImage(lib)
		if err != nil {
			return nil, unavailable(fmt.Errorf("%s: %w", name, err))
		}
		loaded.image, loaded.asked = im, path
		return im, nil
	}
	return nil, unavailable(errors.Join(errs...))
}

// sameFile is whether two names lead to one file, as a link and what it leads to.
func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return a == b || err1 == nil && err2 == nil && os.SameFile(one, two)
}

// isLibrary looks at the file of a path: the loader would wait for a pipe, and say little of
// what is no library. A name without a folder is the loader's to look for.
func isLibrary(path string) error {
	if !strings.Contains(path, "/") {
		return nil
	}
	about, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !about.Mode().IsRegular() {
		return fmt.Errorf("%s is no file, but %s", path, map[bool]string{true: "a folder", false: about.Mode().Type().String()}[about.IsDir()])
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	begin := make([]byte, 4)
	if _, err := io.ReadFull(f, begin); err != nil || string(begin) != "\x7fELF" {
		return fmt.Errorf("%s is no shared library: it begins with %q", path, begin)
	}
	return nil
}

// newImage binds a loaded file by its version.
func newImage(lib uintptr) (*image, error) {
	var about struct {
		Version func() *version `c:"dnnl_version"`
	}
	if err := bind(lib, &about); err != nil {
		return nil, err
	}
	v := about.Version()
	if v == nil {
		return nil, errors.New("it has no version")
	}
	im := &image{lib: lib, version: fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch), newer: v.newer()}
	if v.cpuRuntime == runtimeSYCL {
		return nil, fmt.Errorf("%s is built for SYCL, which takes over the process's signals", im.version)
	}
	im.runtime = map[uint32]string{1: "seq", 2: "omp", 4: "tbb", 8: "threadpool"}[v.cpuRuntime]
	var err error
	switch {
	case v.major == 2 && v.minor >= 6:
		t := new(table2)
		err = errors.Join(bind(lib, &t.common), bind(lib, t))
		im.tables = t
	case v.major == 3 && v.minor >= 2:
		t := new(table3)
		err = errors.Join(bind(lib, &t.common), bind(lib, t))
		im.tables = t
	default:
		err = fmt.Errorf("%s: want 2.6, or 3.2 or later", im.version)
	}
	if err != nil {
		return nil, err
	}
	if im.runtime == "threadpool" || im.runtime == "tbb" || im.runtime == "" {
		return nil, fmt.Errorf("%s has the threads of another runtime (%d): want OpenMP, or none", im.version, v.cpuRuntime)
	}
	at, err := dlsym(lib, "dnnl_version")
	if err != nil {
		return nil, err
	}
	im.maps(at)
	im.threads(lib)
	return im, nil
}

// maps finds the file and other OpenMP runtimes in what the process has mapped.
func (im *image) maps(at uintptr) {
	var found []string
	for _, m := range dl.Mappings() {
		if m.Has(at) {
			im.path = m.Path
		}
		base := filepath.Base(m.Path)
		if strings.HasPrefix(base, "libgomp") || strings.HasPrefix(base, "libiomp5") || strings.HasPrefix(base, "libomp.") || strings.HasPrefix(base, "libomp-") {
			found = append(found, m.Path)
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) > 1 {
		im.openMP = "more than one OpenMP in this process: " + strings.Join(found, ", ")
	}
	if f, err := os.Open(im.path); err == nil {
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err == nil {
			im.build = hex.EncodeToString(sum.Sum(nil))
		}
	}
}

// threads sees to it that an execution has one thread, also where OpenMP was in the process
// before and has read its variables: then each calling thread is told.
func (im *image) threads(lib uintptr) {
	var omp struct {
		Most func() int32        `c:"omp_get_max_threads" how:"optional"`
		Set  func(threads int32) `c:"omp_set_num_threads" how:"optional"`
	}
	if im.runtime != "omp" || bind(lib, &omp) != nil || omp.Most == nil || omp.Set == nil {
		return
	}
	if n := omp.Most(); n != 1 {
		im.sets = omp.Set
		im.openMP = strings.TrimPrefix(im.openMP+fmt.Sprintf("; OpenMP was here before, with %d threads: each execution sets 1 for its own", n), "; ")
	}
}

// alone runs fn on a thread where OpenMP has one thread.
func (im *image) alone(fn func()) {
	if im.sets != nil {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		im.sets(1)
	}
	fn()
}

func (im *image) about(isa int32) About {
	a := About{Version: im.version, Build: im.build, Path: im.path, Runtime: im.runtime, Threads: 1, OpenMP: im.openMP}
	model, features := processor.Read()
	a.Identity = gpuexec.Identity{
		Library: "oneDNN " + im.version, Build: im.build, Compiler: fmt.Sprintf("isa %#x, %s", isa, im.runtime), Device: model, ISA: features,
	}
	return a
}
