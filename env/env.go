package env

import (
	"os"
	"slices"
	"strconv"

	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// Lookup gives a variable's value and whether it is set.
type Lookup func(name string) (value string, set bool)

// Process looks into the environment of this process.
func Process() Lookup { return os.LookupEnv }

// Source says where a value came from.
type Source string

// The sources, in rising order of precedence.
const (
	Default     Source = "default"
	Environment Source = "env"
	API         Source = "api"
)

// Setting is a value with its source.
type Setting[T any] struct {
	Value  T
	Source Source
	Name   string // of the variable it was read from, else empty
}

// Override is s set through an API to value, which wins over the environment.
func (s Setting[T]) Override(value T) Setting[T] {
	return Setting[T]{Value: value, Source: API}
}

// Refusal is a configuration entry that was not taken.
type Refusal struct {
	Name  string // of the variable
	Entry string // what was written, as it stands
	Why   string // what is wrong with it, and what would be right
}

// String is the refusal as one line of a log, whatever the entry contains.
func (r Refusal) String() string { return r.Name + ": " + r.Why }

// Settings is what the environment said at one moment.
type Settings struct {
	ArtefactCapacity Setting[limit.Limit] // entries (SPEC C9)
	CPUConstants     Setting[Constants]   // of each device of the kind (SPEC T10)
	GPUConstants     Setting[Constants]
	StoreDir         Setting[string]      // empty: no store
	StoreBases       Setting[string]      // a list of directories, as PATH is one; empty: none
	StoreCapacity    Setting[limit.Limit] // bytes
	SessionGroups    Setting[limit.Limit] // shape groups a session
	SessionPolicy    Setting[string]      // a word of SPEC S1
	Bucket           Setting[string]      // a bucketing of SPEC S4
	LogLevel         Setting[string]      // debug, info, warn or error
	CPUISA           Setting[string]      // auto, avx512, avx2 or generic
	OneDNN           Setting[string]      // the path of oneDNN's library; empty: as it is installed
	NVRTC            Setting[string]      // the path of NVIDIA's compiler; empty: as it is installed
	CUBLAS           Setting[string]      // the path of NVIDIA's cuBLAS, or "installed"; empty: it is not used
	VulkanDevice     Setting[string]      // a part of the name of the Vulkan device that comes first; empty: by kinds
	Workers          Setting[Workers]     // of each device
	MemoryLimit      Setting[MemoryLimit] // of the process
	DriverCaches     Setting[string]      // 1: drivers keep their own caches under StoreDir, too; else 0
	Strict           Setting[string]      // 1: what is refused or unknown is an error; else 0

	Refusals []Refusal // in the order of Table; those of one list in the list's order
}

// Workers is how many workers a device gets.
type Workers int

// AutoWorkers is one worker for each core.
const AutoWorkers Workers = 0

func (w Workers) String() string {
	if w == AutoWorkers {
		return auto
	}
	return strconv.Itoa(int(w))
}

// MemoryLimit is what values and blobs may take together: off, auto (0.8 of what the
// machine or its container grants) or a size.
type MemoryLimit struct {
	Auto  bool
	Bytes int64 // above 0 where a size was given
}

func (m MemoryLimit) String() string {
	switch {
	case m.Auto:
		return auto
	case m.Bytes > 0:
		return size.Format(limit.Of(m.Bytes), size.MiB)
	}
	return off
}

// Read takes the snapshot. It never fails: a value that cannot be taken is among
// the Refusals, and its setting keeps the default.
func Read(lookup Lookup) Settings {
	var s Settings
	for _, v := range variables {
		v.reset(&s)
		for _, name := range v.names {
			text, set := lookup(name)
			if !set {
				continue
			}
			v.read(&s, name, text)
			break // a refused value does not fall through to the older name
		}
	}
	return s
}

// Wrong is what is wrong with an environment that has variables of these names, a
// line of a log for each: what was refused, and each Stray. strict says that this is an
// error: KILN_STRICT is 1, or refused. Else a line says what is in force in its place.
func Wrong(s Settings, names []string) (lines []string, strict bool) {
	refused := func(r Refusal) bool { return r.Name == Strict }
	strict = s.Strict.Value == "1" || slices.ContainsFunc(s.Refusals, refused)
	for _, row := range Table(s) {
		for _, line := range row.Refused {
			if !strict {
				line += "; in force is " + cell(row.Value)
				if row.Name == "KILN_BUCKET" {
					line += " (geometric:8 in kiln run and in encoders)"
				}
			}
			lines = append(lines, line)
		}
	}
	for _, stray := range Strays(names) {
		lines = append(lines, stray.String())
	}
	return lines, strict
}

func (s *Settings) refuse(name, entry, why string) {
	s.Refusals = append(s.Refusals, Refusal{Name: name, Entry: entry, Why: why})
}
