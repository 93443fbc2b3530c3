package kernels

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/flight"
)

// Config of an Engine. The zero value is usable.
type Config struct {
	// MemoryBytes is how much address space the engine reserves, rounded up to
	// 64 KiB; DefaultMemoryBytes if 0. It never grows.
	MemoryBytes uint64
	// Scratch is an existing directory for files that live for the length of a
	// compile; by default one in memory where the system has it. The compiler
	// syncs each file, which costs milliseconds on a disk.
	Scratch string
}

// Engine compiles kernels to machine code and owns the memory they work on. It
// is safe for concurrent use; a goroutine of its own lasts as long as a compile.
//
// INVARIANT: all programs run in one wazero runtime and import its one memory,
// so a buffer is a byte offset that every kernel understands.
// INVARIANT: equal modules share one machine code, compiled or loaded once.
type Engine struct {
	runtime wazero.Runtime
	cache   wazero.CompilationCache
	memory  *linearMemory
	scratch *scratch
	files   string // where the compiler puts its files, empty without a compiler
	isa     uint64 // the instruction set bits the compiler keys its files by

	mu struct {
		sync.Mutex
		code   map[[sha256.Size]byte]*machineCode // each is in use
		known  map[Spec]*machineCode              // the same ones, by what they were made for
		closed bool
	}
	flights flight.Locked[[sha256.Size]byte, *machineCode]
	making  sync.WaitGroup

	// closing is held while a module is closed: each of them clears a field of
	// the memory that all import.
	closing sync.Mutex
}

// Open starts an engine. It takes about a millisecond.
func Open(cfg Config) (*Engine, error) {
	bytes := cfg.MemoryBytes
	if bytes == 0 {
		bytes = DefaultMemoryBytes
	}
	if bytes > MaxBufferBytes {
		return nil, fault.Invalidf("kernels: open", "%d bytes of memory exceed %d", bytes, uint64(MaxBufferBytes))
	}
	pages := uint32((bytes + wasm.PageBytes - 1) / wasm.PageBytes)
	dir, err := newScratch(cfg.Scratch)
	if err != nil {
		return nil, ioError("kernels: open", err)
	}
	e := &Engine{scratch: dir}
	e.mu.code, e.mu.known = map[[sha256.Size]byte]*machineCode{}, map[Spec]*machineCode{}
	e.flights = flight.Locked[[sha256.Size]byte, *machineCode]{Mu: &e.mu, Lend: e.lend, Scope: e}
	if err := e.start(pages); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

// start makes the runtime and the module that exports the memory. That module
// is the first that the compiler writes a file for, and tells how it names them.
func (e *Engine) start(pages uint32) error {
	const op = "kernels: open"
	ctx := context.Background()
	mapped, err := reserve(uint64(pages) * wasm.PageBytes)
	if err != nil {
		return err
	}
	e.memory = &linearMemory{bytes: mapped}
	if e.cache, err = wazero.NewCompilationCacheWithDir(e.scratch.dir); err != nil {
		return ioError(op, err)
	}
	// The machine code compiler where the platform has one, else an interpreter.
	e.runtime = wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfig().
		WithCompilationCache(e.cache).WithCoreFeatures(api.CoreFeaturesV2).WithMemoryLimitPages(pages))
	m := wasm.NewModule()
	m.DefineMemory(memoryName, pages)
	module := m.Encode()
	compiled, err := e.runtime.CompileModule(ctx, module)
	if err != nil {
		return &fault.Error{Op: op, Backend: "cpu", Err: because(fault.ErrUnavailable, err)}
	}
	if _, err := e.runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, e.memory), compiled,
		wazero.NewModuleConfig().WithName(memoryModule)); err != nil {
		return &fault.Error{Op: op, Backend: "cpu", Err: because(fault.ErrUnavailable, err)}
	}
	return e.learnFileNames(sha256.Sum256(append(module, 0)))
}

// learnFileNames finds the compiler's folder and the instruction set bits that
// explain the name of the file it wrote for the module with this id. If none
// do, this compiler has no blobs.
func (e *Engine) learnFileNames(id [sha256.Size]byte) error {
	found, err := filepath.Glob(filepath.Join(e.scratch.dir, "*", "*"))
	if err != nil {
		return ioError("kernels: open", err)
	}
	const bits = 1 << 8 // wazero 1.12 knows three
	for isa := uint64(0); isa < bits && len(found) == 1; isa++ {
		if filepath.Base(found[0]) == fileName(id, isa) {
			e.files, e.isa = filepath.Dir(found[0]), isa
			break
		}
	}
	for _, f := range found {
		if err := os.Remove(f); err != nil {
			return ioError("kernels: open", err)
		}
	}
	return nil
}

// fileName is how the compiler names its file for a module: by the module's id,
// which is the digest of its bytes and a zero for "no listener, no termination
// check", and the instruction set.
func fileName(id [sha256.Size]byte, isa uint64) string {
	key := binary.LittleEndian.AppendUint64(append(id[:], "WAZEVO"...), isa)
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

// Memory is the whole linear memory. It neither moves nor grows; it is gone
// after Close. Bytes beyond what was written are zero and cost nothing.
func (e *Engine) Memory() []byte { return e.memory.bytes }

// Discard gives the pages that lie wholly within n bytes from offset back to
// the system; their content becomes zero.
func (e *Engine) Discard(offset, n uint64) error {
	if size := uint64(len(e.memory.bytes)); offset > size || n > size-offset {
		return fault.Invalidf("kernels: discard", "%d bytes at %d are not within %d", n, offset, size)
	}
	page := uint64(os.Getpagesize())
	from, to := (offset+page-1)/page*page, (offset+n)/page*page
	if from >= to {
		return nil
	}
	if err := discard(e.memory.bytes[from:to]); err != nil {
		return ioError("kernels: discard", err)
	}
	return nil
}

// Compile gives a program for spec. Calls for equal modules, also at the same
// time, compile once. It takes 0.3 to 1 ms unless the code is there already.
func (e *Engine) Compile(ctx context.Context, spec Spec) (*Program, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if code := e.found(spec); code != nil {
		return newProgram(spec, code), nil
	}
	module, err := spec.Emit()
	if err != nil {
		return nil, err
	}
	return e.program(ctx, spec, module, nil, e.isa)
}

// found is the code of a kernel whose module need not be emitted to know it, with a pin;
// nil if there is none.
func (e *Engine) found(spec Spec) *machineCode {
	e.mu.Lock()
	defer e.mu.Unlock()
	code := e.mu.known[spec.code()]
	if code != nil {
		code.users.Pin()
	}
	return code
}

// Load gives the program of a blob that Program.Blob gave to this or an earlier
// process, without compiling. A blob that is damaged or made for another build
// or processor is an *Error with its Reason, and is never run.
func (e *Engine) Load(ctx context.Context, data []byte) (*Program, error) {
	b, err := parseBlob(data)
	if err != nil {
		return nil, err
	}
	if e.files == "" {
		return nil, &fault.Error{Op: opLoad, Backend: "cpu", Err: fault.ErrUnsupported}
	}
	if id := Identity(); id == "" || b.identity != id {
		return nil, refused(fault.Outdated, "build", "it was made by %q, this is %q", b.identity, id)
	}
	if b.features&^e.isa != 0 { // code for fewer runs just as well (SPEC K7)
		return nil, refused(fault.Incompatible, "isa", "it needs instruction set bits %#x, here are %#x", b.features, e.isa)
	}
	op, err := ops.Parse(b.spec)
	if err != nil {
		return nil, refused(fault.Format, "spec", "%v", err)
	}
	spec := Spec{op}
	module, err := spec.Emit()
	if err != nil {
		return nil, refused(fault.Format, "spec", "%v", err)
	}
	if sha256.Sum256(module) != b.module {
		return nil, refused(fault.SourceChanged, "module", "%s is emitted differently now", spec)
	}
	return e.program(ctx, spec, module, b.code, b.features)
}

// program finds or makes the machine code for module; native, if not nil, is
// used instead of compiling. features are those that the code is for.
func (e *Engine) program(ctx context.Context, spec Spec, module, native []byte, features uint64) (*Program, error) {
	var code *machineCode
	digest := sha256.Sum256(module)
	_, err := e.flights.Ride(ctx, flight.Want[[sha256.Size]byte, *machineCode]{
		Key: digest, Name: spec.String(), Blob: native != nil,
		Look: func() (bool, error) {
			if e.mu.closed {
				return false, &fault.Error{Op: "kernels: compile", Backend: "cpu", Err: fault.ErrClosed}
			}
			if code = e.mu.code[digest]; code != nil {
				code.users.Pin()
			}
			return code != nil, nil
		},
		Make: func(context.Context) (*machineCode, error) { // a compile cannot be interrupted
			made := &machineCode{engine: e, digest: digest, of: spec.code(), features: features}
			made.users.Init(nil)
			return made, made.make(module, native)
		},
		Keep:    func(made *machineCode) { e.mu.code[digest], e.mu.known[made.of] = made, made }, // while it is used
		Take:    func(made *machineCode) { made.users.Pin(); code = made },
		Release: (*machineCode).release,
	})
	if err != nil {
		return nil, err
	}
	return newProgram(spec, code), nil
}

// lend runs a compile on a goroutine of its own, for which Close waits.
func (e *Engine) lend(fn func()) { e.making.Go(fn) }

// Close frees the memory and all machine code, and waits for compiles. Nothing may
// run any more, and what Memory gave must not be touched again. Closing twice is
// fine.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.mu.closed {
		e.mu.Unlock()
		return nil
	}
	e.mu.closed = true
	clear(e.mu.code)
	clear(e.mu.known)
	e.flights.Strand(&fault.Error{Op: "kernels: compile", Backend: "cpu", Err: fault.ErrClosed})
	e.mu.Unlock()
	e.making.Wait()
	ctx := context.Background()
	var errs []error
	if e.runtime != nil {
		errs = append(errs, e.runtime.Close(ctx))
	}
	if e.cache != nil {
		errs = append(errs, e.cache.Close(ctx))
	}
	if e.memory != nil {
		errs = append(errs, e.memory.unmap())
	}
	return errors.Join(append(errs, e.scratch.remove())...)
}

// linearMemory hands the engine's mapping to the runtime.
type linearMemory struct {
	bytes []byte
}

// Allocate is called once, for the module that exports the memory.
func (m *linearMemory) Allocate(uint64, uint64) experimental.LinearMemory { return m }

// Reallocate gives the memory's first bytes, nil if there are not as many.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size > uint64(len(m.bytes)) {
		return nil
	}
	return m.bytes[:size:len(m.bytes)]
}

// Free does nothing: the engine unmaps when its runtime is closed.
func (m *linearMemory) Free() {}

func (m *linearMemory) unmap() error {
	b := m.bytes
	m.bytes = nil
	if b == nil {
		return nil
	}
	return release(b)
}

// because gives an error that is both a sentinel and its cause.
func because(sentinel, cause error) error { return fmt.Errorf("%w: %w", sentinel, cause) }

func ioError(op string, cause error) error {
	return &fault.Error{Op: op, Backend: "cpu", Err: because(fault.ErrIO, cause)}
}
