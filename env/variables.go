package env

import (
	"fmt"

	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// ConstantCapacities is the variable of SPEC T10.
const ConstantCapacities = "ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY"

// Strict is the variable that makes what is wrong with the others an error.
const Strict = "KILN_STRICT"

// A variable is one setting with the names it is read from, the newest first.
type variable struct {
	names []string
	help  string
	reset func(*Settings)                      // sets the default
	read  func(s *Settings, name, text string) // takes or refuses what was written
	show  func(*Settings) (value string, source Source, name string)
}

// variables is every setting, in the order in which people see them.
var variables = []variable{
	scalar(func(s *Settings) *Setting[limit.Limit] { return &s.ArtefactCapacity }, limit.Of(1024), parseLimit,
		"artefact cache: entries, a number or unlimited; 0 disables",
		"ONEDNN_PRIMITIVE_CACHE_CAPACITY", "DNNL_PRIMITIVE_CACHE_CAPACITY"),
	{
		names: []string{ConstantCapacities},
		help:  "constant tensors: kind:MiB[:policy];... with kinds cpu, gpu and policies NO_EVICT, COST; MiB a number or unlimited",
		reset: resetConstants, read: readConstants, show: showConstants,
	},
	scalar(func(s *Settings) *Setting[string] { return &s.StoreDir }, "", parsePath,
		"kernel store: its directory; not set: no store", "KILN_STORE_DIR"),
	scalar(func(s *Settings) *Setting[string] { return &s.StoreBases }, "", parsePaths,
		"kernel store: read-only directories that are asked after it, a list as PATH is one", "KILN_STORE_BASES"),
	showsSize(scalar(func(s *Settings) *Setting[limit.Limit] { return &s.StoreCapacity }, limit.Of(1024*size.MiB), parseSize,
		"kernel store: MiB, a size with its unit such as 512KiB or 5GiB, or unlimited; 0: no store; where it is not set, the directory's own goes before this default", "KILN_STORE_CAPACITY")),
	scalar(func(s *Settings) *Setting[limit.Limit] { return &s.SessionGroups }, limit.Of(64), parseLimit,
		"shape groups a session, a number or unlimited; 0 disables caching (in Paddle 0 meant no limit)", "KILN_SESSION_GROUPS"),
	scalar(func(s *Settings) *Setting[string] { return &s.SessionPolicy }, "duel", oneOf("fifo", "lru", "sieve", "duel"),
		"which shape group goes: fifo, lru, sieve or duel", "KILN_SESSION_POLICY"),
	scalar(func(s *Settings) *Setting[string] { return &s.Bucket }, "exact", parseBucket,
		"the shape that is compiled: exact, multiple:N, pow2 or geometric:K (kiln run and encoders take geometric:8 where this is not set)", "KILN_BUCKET"),
	scalar(func(s *Settings) *Setting[string] { return &s.LogLevel }, "warn", oneOf("debug", "info", "warn", "error"),
		"the least level that the command logs: debug, info, warn or error", "KILN_LOG_LEVEL"),
	scalar(func(s *Settings) *Setting[string] { return &s.CPUISA }, auto, oneOf(auto, "avx512", "avx2", "generic"),
		"matrix kernels of the cpu device: auto (the best there is), avx512, avx2 or generic", "KILN_CPU_ISA"),
	scalar(func(s *Settings) *Setting[string] { return &s.OneDNN }, "", parsePath,
		"oneDNN's library: the path of its file; not set: as it is installed", "KILN_ONEDNN_LIBRARY"),
	scalar(func(s *Settings) *Setting[string] { return &s.NVRTC }, "", parsePath,
		"NVIDIA's compiler for CUDA: the path of libnvrtc.so; not set: as it is installed", "KILN_NVRTC"),
	scalar(func(s *Settings) *Setting[string] { return &s.CUBLAS }, "", parsePath,
		"NVIDIA's cuBLAS for CUDA's products, where it measures quicker: the path of libcublas.so, or installed; not set: it is not used", "KILN_CUBLAS"),
	scalar(func(s *Settings) *Setting[string] { return &s.VulkanDevice }, "", parsePath,
		"the vulkan device that comes first: a part of its name; not set: discrete ones first, software last", "KILN_VULKAN_DEVICE"),
	scalar(func(s *Settings) *Setting[Workers] { return &s.Workers }, AutoWorkers, parseWorkers,
		"workers of each device: auto (one a core) or a number", "KILN_WORKERS"),
	scalar(func(s *Settings) *Setting[MemoryLimit] { return &s.MemoryLimit }, MemoryLimit{}, parseMemoryLimit,
		"what values and blobs may take together, not all that the process takes: off, auto (0.8 of what the machine grants), MiB or a size with its unit", "KILN_MEMORY_LIMIT"),
	scalar(func(s *Settings) *Setting[string] { return &s.DriverCaches }, "0", oneOf("0", "1"),
		"kernel store: 1 has drivers keep their own caches (Mesa, PoCL, CUDA, NVIDIA) in its directory, too; 0 leaves them where they are", "KILN_DRIVER_CACHES"),
	scalar(func(s *Settings) *Setting[string] { return &s.Strict }, "0", oneOf("0", "1"),
		"what is wrong with the environment: 0 (it is logged, and defaults stay) or 1 (it is an error)", Strict),
}

// showsSize makes the variable of StoreCapacity show what it takes.
func showsSize(v variable) variable {
	v.show = func(s *Settings) (string, Source, string) {
		f := s.StoreCapacity
		return size.Format(f.Value, size.MiB), f.Source, f.Name
	}
	return v
}

// scalar is a variable with one value at field, read by parse, which says why
// it refuses a text.
func scalar[T any](field func(*Settings) *Setting[T], initial T, parse func(string) (T, error), help string, names ...string) variable {
	return variable{
		names: names, help: help,
		reset: func(s *Settings) { *field(s) = Setting[T]{Value: initial, Source: Default} },
		read: func(s *Settings, name, text string) {
			value, err := parse(text)
			if err != nil {
				s.refuse(name, text, why(err))
				return
			}
			*field(s) = Setting[T]{Value: value, Source: Environment, Name: name}
		},
		show: func(s *Settings) (string, Source, string) {
			f := field(s)
			return fmt.Sprint(f.Value), f.Source, f.Name
		},
	}
}
