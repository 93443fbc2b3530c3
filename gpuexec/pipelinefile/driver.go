package pipelinefile

import "context"

// Driver builds pipelines on one device. Its methods are called from several
// goroutines at once and must bring the calls to the device's workers
// themselves. It must live until the cache is closed and the last lease ended.
type Driver interface {
	// OpenCache makes a driver cache, from a blob or empty from nil. A blob was
	// verified whole and begins with this device's standard header; a driver may
	// still refuse it.
	OpenCache(ctx context.Context, blob []byte) (DriverCache, error)
	// Build makes a pipeline; cache is nil where there is none. The words come
	// from a front end, a file or a caller: refusing what is no SPIR-V is the
	// driver's part.
	Build(ctx context.Context, m Module, cache DriverCache) (Pipeline, error)
}

// DriverCache is a driver's own cache of pipelines (VkPipelineCache).
type DriverCache interface {
	// Merge adds what from holds. Nobody else uses the receiver meanwhile; builds
	// may go on with from.
	Merge(ctx context.Context, from DriverCache) error
	// Blob gives its content, standard header included. Builds may go on.
	Blob(ctx context.Context) ([]byte, error)
	// Destroy is called once, after every use.
	Destroy()
}

// Pipeline is a compiled pipeline of a driver.
type Pipeline interface {
	// Destroy is called once, after the last lease.
	Destroy()
}

// Module is what a driver makes one pipeline of. The slices must not be changed.
type Module struct {
	Shader    string // for messages
	Words     []uint32
	Entry     string // the kernel's name in the module
	Options   uint64
	Constants []Constant
	LocalSize [3]uint32
	Subgroup  uint32
}

// FrontEnd compiles shaders. Safe for concurrent use.
type FrontEnd interface {
	// Compile makes SPIR-V of a source, one word at least; the result must depend
	// on nothing else than the arguments and the library's version. The context is
	// that of a flight: a front end that asks for other pipelines hands it on.
	Compile(ctx context.Context, shader string, source []byte, options uint64) ([]uint32, error)
}
