//go:build linux && (amd64 || arm64)

package dnnl2

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/fault"
)

// Values of the C enumerations used here, from dnnl_types.h of 2.6.
const (
	engineCPU     = 1
	typeF32       = 3
	tagAny        = 1
	tagAB         = 3 // row-major
	streamDefault = 1
	isaAVX2       = 0x7

	queryImplementation = 8
	queryWeights        = 131

	argSrc     = 1
	argDst     = 17
	argWeights = 33
)

// Descriptors are filled by the library and opaque here; their sizes are those
// of 2.6, 64 bytes up for a later 2.x.
type (
	memoryDesc [696 + 64]byte
	matmulDesc [2800 + 320]byte
	handle     uintptr
)

type version struct{ major, minor, patch int32 }

// functions are the library's entry points, under their C names.
type functions struct {
	version            func() *version
	setMaxCPUISA       func(isa int32) int32
	engineCreate       func(engine *handle, kind int32, index uintptr) int32
	streamCreate       func(stream *handle, engine handle, flags uint32) int32
	streamWait         func(stream handle) int32
	descInit           func(md *memoryDesc, dims int32, dim *[12]int64, kind, tag int32) int32
	descSize           func(md *memoryDesc) uintptr
	matmulInit         func(desc *matmulDesc, src, weights, bias, dst *memoryDesc) int32
	primitiveDesc      func(pd *handle, desc *matmulDesc, attr, engine, hint handle) int32
	reorderDesc        func(pd *handle, from *memoryDesc, fromEngine handle, to *memoryDesc, toEngine, attr handle) int32
	primitiveDescQuery func(pd handle, what, index int32, result **byte) int32
	primitiveDescMD    func(pd handle, what, index int32) *memoryDesc
	primitiveDescFree  func(pd handle) int32
	primitiveCreate    func(primitive *handle, pd handle) int32
	primitiveFree      func(primitive handle) int32
	memoryCreate       func(memory *handle, md *memoryDesc, engine handle, at *byte) int32
	memoryFree         func(memory handle) int32
	execute            uintptr // called often, so without purego's wrapper
}

// Library is the opened library with its processor engine and one stream. It is
// safe for concurrent use; it stays loaded for the life of the process.
type Library struct {
	c       functions
	engine  handle
	stream  handle
	version string
}

var opened struct {
	sync.Mutex
	library *Library
	avx2    bool
}

// Open loads the library, once a process. With avx2 it uses no wider
// instructions than AVX2, which can be chosen at the first call only. Open sets
// OMP_NUM_THREADS to 1 in the process's environment: the library's threads
// would spin against those of Go.
func Open(avx2 bool) (*Library, error) {
	opened.Lock()
	defer opened.Unlock()
	if opened.library != nil {
		if opened.avx2 != avx2 {
			return nil, fault.Invalidf("dnnl2: open", "the widest instructions were chosen already: use another process")
		}
		return opened.library, nil
	}
	if err := os.Setenv("OMP_NUM_THREADS", "1"); err != nil {
		return nil, fmt.Errorf("dnnl2: open: %w", err)
	}
	lib, err := purego.Dlopen(soname, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, unavailable(err)
	}
	l := &Library{}
	if err := l.bind(lib); err != nil {
		return nil, unavailable(err)
	}
	v := l.c.version()
	if v == nil || v.major != 2 {
		return nil, unavailable(errors.New("this is not version 2"))
	}
	l.version = fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch)
	if avx2 {
		if err := status("set the instruction set", l.c.setMaxCPUISA(isaAVX2)); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(
		status("create an engine", l.c.engineCreate(&l.engine, engineCPU, 0)),
		status("create a stream", l.c.streamCreate(&l.stream, l.engine, streamDefault)),
	); err != nil {
		return nil, err
	}
	opened.library, opened.avx2 = l, avx2
	return l, nil
}

// bind looks every entry point up before any is used.
func (l *Library) bind(lib uintptr) error {
	for name, fn := range map[string]any{
		"dnnl_version":                       &l.c.version,
		"dnnl_set_max_cpu_isa":               &l.c.setMaxCPUISA,
		"dnnl_engine_create":                 &l.c.engineCreate,
		"dnnl_stream_create":                 &l.c.streamCreate,
		"dnnl_stream_wait":                   &l.c.streamWait,
		"dnnl_memory_desc_init_by_tag":       &l.c.descInit,
		"dnnl_memory_desc_get_size":          &l.c.descSize,
		"dnnl_matmul_desc_init":              &l.c.matmulInit,
		"dnnl_primitive_desc_create":         &l.c.primitiveDesc,
		"dnnl_reorder_primitive_desc_create": &l.c.reorderDesc,
		"dnnl_primitive_desc_query":          &l.c.primitiveDescQuery,
		"dnnl_primitive_desc_query_md":       &l.c.primitiveDescMD,
		"dnnl_primitive_desc_destroy":        &l.c.primitiveDescFree,
		"dnnl_primitive_create":              &l.c.primitiveCreate,
		"dnnl_primitive_destroy":             &l.c.primitiveFree,
		"dnnl_memory_create":                 &l.c.memoryCreate,
		"dnnl_memory_destroy":                &l.c.memoryFree,
	} {
		at, err := purego.Dlsym(lib, name)
		if err != nil {
			return err
		}
		purego.RegisterFunc(fn, at)
	}
	var err error
	l.c.execute, err = purego.Dlsym(lib, "dnnl_primitive_execute")
	return err
}

// Version is the library's version, such as "2.6.3".
func (l *Library) Version() string { return l.version }

// status turns a dnnl_status_t into an error.
func status(verb string, code int32) error {
	if code == 0 {
		return nil
	}
	names := []string{"", "out of memory", "invalid arguments", "unimplemented", "iterator ends", "runtime error", "not required"}
	what := "unknown"
	if code > 0 && int(code) < len(names) {
		what = names[code]
	}
	return fmt.Errorf("dnnl2: %s: status %d (%s)", verb, code, what)
}
