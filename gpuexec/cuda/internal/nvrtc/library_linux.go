//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// install is what to do where nothing was found.
const install = "install NVRTC (of the CUDA toolkit, or the package nvidia-cuda-nvrtc of PyPI) and set KILN_NVRTC to its libnvrtc.so"

// sonames are tried in turn.
var sonames = []string{"libnvrtc.so.13", "libnvrtc.so.12"}

// Library is the opened compiler. It stays loaded for the life of the process.
type Library struct {
	Path    string // of its file
	Version string // such as 13.5
	Build   string // of it and of its builtins; empty = not known
	Archs   []int  // that it compiles for

	version   func(major, minor *int32) int32
	text      func(code int32) string
	create    func(program *uintptr, text, name *byte, headers int32, texts, names **byte) int32
	compile   func(program uintptr, n int32, options **byte) int32
	destroy   func(program *uintptr) int32
	archCount func(n *int32) int32
	archList  func(archs *int32) int32
	outputs   map[string]output
}

// output is a pair of functions for one thing that a program gives.
type output struct {
	size func(program uintptr, bytes *uintptr) int32
	get  func(program uintptr, into *byte) int32
}

var loaded struct {
	sync.Mutex
	libraries map[string]*Library // by the path that was asked for, and by their own
}

// Open opens the library of that path, or the one that is installed, once a process.
// ErrUnavailable says what to install.
func Open(path string) (*Library, error) {
	loaded.Lock()
	defer loaded.Unlock()
	if l := loaded.libraries[path]; l != nil {
		return l, nil
	}
	var l *Library
	err := dl.First(path, sonames, func(name string) (err error) {
		l, err = load(name)
		return err
	})
	if err != nil {
		return nil, unavailable(err)
	}
	if loaded.libraries == nil {
		loaded.libraries = make(map[string]*Library)
	}
	loaded.libraries[path], loaded.libraries[l.Path] = l, l
	return l, nil
}

func unavailable(cause error) error {
	err := failure(fault.ErrUnavailable, "NVRTC: %w: %s", cause, install)
	err.Op = "cuda: open"
	return err
}

// load opens the library of a name. Where it has a path, its builtins are opened first:
// some look for them in the loader's folders alone.
func load(name string) (l *Library, err error) {
	defer func() {
		if r := recover(); r != nil { // a missing symbol
			l, err = nil, fmt.Errorf("%s: %v", name, r)
		}
	}()
	if filepath.IsAbs(name) {
		for _, beside := range builtins(name) {
			if _, err := dl.Open(beside, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
				return nil, err
			}
		}
	}
	lib, err := dl.Open(name, dl.Local)
	if err != nil {
		return nil, err
	}
	l = &Library{outputs: make(map[string]output)}
	for name, fn := range map[string]any{"Version": &l.version, "GetErrorString": &l.text, "CreateProgram": &l.create, "CompileProgram": &l.compile,
		"DestroyProgram": &l.destroy, "GetNumSupportedArchs": &l.archCount, "GetSupportedArchs": &l.archList} {
		purego.RegisterLibFunc(fn, lib, "nvrtc"+name)
	}
	for _, what := range []string{"ProgramLog", "PTX", "CUBIN"} {
		var o output
		purego.RegisterLibFunc(&o.size, lib, "nvrtcGet"+what+"Size")
		purego.RegisterLibFunc(&o.get, lib, "nvrtcGet"+what)
		l.outputs[what] = o
	}
	var major, minor, n int32
	if code := l.version(&major, &minor); code != 0 {
		return nil, errors.New(l.text(code))
	}
	l.Version = fmt.Sprintf("%d.%d", major, minor)
	if code := l.archCount(&n); code != 0 || n < 1 {
		return nil, errors.New(l.text(code))
	}
	archs := make([]int32, n)
	if code := l.archList(&archs[0]); code != 0 {
		return nil, errors.New(l.text(code))
	}
	for _, a := range archs {
		l.Archs = append(l.Archs, int(a))
	}
	at, err := purego.Dlsym(lib, "nvrtcVersion")
	if err != nil {
		return nil, err
	}
	for _, m := range dl.Mappings() {
		if m.Has(at) {
			l.Path = m.Path
		}
	}
	l.Build = buildOf(l.Path)
	return l, nil
}

// builtins are the libraries that the compiler opens beside it.
func builtins(path string) []string {
	found, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "libnvrtc-builtins.so.*"))
	return slices.DeleteFunc(found, func(name string) bool { return strings.Contains(filepath.Base(name), ".alt.") })
}

// buildOf is a digest over what the linker named the compiler and its builtins by, or over
// the whole of a file that has no such name.
func buildOf(path string) string {
	all := builtins(path)
	if path == "" || len(all) == 0 {
		return ""
	}
	h := sha256.New()
	for _, name := range append(all, path) {
		if err := writeBuild(h, name); err != nil {
			return ""
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func writeBuild(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	parsed, err := elf.NewFile(f)
	if err != nil {
		return err
	}
	if note := parsed.Section(".note.gnu.build-id"); note != nil {
		if id, err := note.Data(); err == nil && len(id) >= 32 {
			_, err := fmt.Fprintf(w, "%x\n", id)
			return err
		}
	}
	_, err = io.Copy(w, f)
	return err
}

// bound has this process end, and not the machine's memory, where a text makes the compiler
// take too much, beside what the process has.
func bound() {
	var most unix.Rlimit
	const data = 5
	if unix.Getrlimit(unix.RLIMIT_DATA, &most) == nil {
		most.Cur = min(most.Cur, uint64(memoryOf("self", data)+mostAtWork))
		_ = unix.Setrlimit(unix.RLIMIT_DATA, &most)
	}
}

// zeroed is a text as C has it.
func zeroed(text string) *byte { return &append([]byte(text), 0)[0] }

// Compile compiles in this process, for texts that are trusted: it cannot be told to stop,
// and see the package. Errors: those of Check, ErrInvalid with the compiler's log, and
// ErrUnsupported for a target that it does not know.
func (l *Library) Compile(r Request) (Output, error) {
	if err := r.Check(); err != nil {
		return Output{}, err
	}
	return l.checked(r)
}

// checked compiles what has passed Check.
func (l *Library) checked(r Request) (Output, error) {
	_, arch, _ := strings.Cut(strings.TrimRight(r.Target, "af"), "_")
	if n, _ := strconv.Atoi(arch); !slices.Contains(l.Archs, n) {
		return Output{}, failure(fault.ErrUnsupported, "NVRTC %s does not compile for %s, only for %d", l.Version, r.Target, l.Archs)
	}
	var texts, names []*byte
	for name, text := range r.Includes {
		texts, names = append(texts, zeroed(text)), append(names, zeroed(name))
	}
	texts, names = append(texts, nil), append(names, nil)
	program0 := new(uintptr)
	if code := l.create(program0, zeroed(r.text()), zeroed(program), int32(len(texts)-1), &texts[0], &names[0]); code != 0 {
		return Output{}, failure(errCompiler, "%s", l.text(code))
	}
	defer l.destroy(program0)
	var options []*byte
	for _, o := range r.options() {
		options = append(options, zeroed(o))
	}
	code := l.compile(*program0, int32(len(options)), &options[0])
	runtime.KeepAlive(options)
	runtime.KeepAlive(texts)
	runtime.KeepAlive(names)
	log, err := l.output(*program0, "ProgramLog")
	out := Output{Log: strings.TrimSpace(strings.TrimRight(string(log), "\x00"))}
	if code != 0 {
		return Output{}, l.failed(code, out.Log)
	}
	if err != nil {
		return Output{}, err
	}
	if out.PTX, err = l.output(*program0, "PTX"); err != nil {
		return Output{}, err
	}
	out.Cubin, err = l.output(*program0, "CUBIN")
	return out, err
}

// output is one thing that a program gives.
func (l *Library) output(program uintptr, what string) ([]byte, error) {
	o, size := l.outputs[what], new(uintptr)
	if code := o.size(program, size); code != 0 {
		return nil, failure(errCompiler, "%s: %s", what, l.text(code))
	}
	if *size == 0 {
		return nil, nil
	}
	b := make([]byte, *size)
	if code := o.get(program, &b[0]); code != 0 {
		return nil, failure(errCompiler, "%s: %s", what, l.text(code))
	}
	return b, nil
}

// faults are lines of a log that name what is wrong with a text.
var faults = regexp.MustCompile(`(error|fatal) *:`)

// failed is an error of a compile with the head of the log.
func (l *Library) failed(code int32, log string) error {
	const (
		outOfMemory   = 1
		invalidOption = 5
		compilation   = 6
		mostLog       = 8 << 10
	)
	why := ""
	if code == compilation && !faults.MatchString(log) {
		why = ", of no line of the text: there may be no memory for it"
	}
	if len(log) > mostLog {
		log = log[:mostLog] + "..."
	}
	kind := errCompiler
	switch code {
	case outOfMemory:
		kind = fault.ErrTooLarge
	case invalidOption, compilation:
		kind = fault.ErrInvalid
	}
	return failure(kind, "%s%s:\n%s", l.text(code), why, log)
}
