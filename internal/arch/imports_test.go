package arch

import (
	"slices"
	"strconv"
	"strings"
)

// order is the house from left to right: a package may import its own room and
// those further right. Rooms that share a place do not see each other.
var order = [][]string{
	{"cmd", "docs"}, {"stress"}, {"encoder"}, {"."}, {"sessioncache"}, {"gpuexec"}, {"constants"}, {"shapegroups", "actors", "env"}, {"internal"}, {"limit"}, {"fault"},
}

// lodgers are packages under internal/ that serve several rooms, or their tests, and
// stand beside the room that they import.
var lodgers = map[string]string{
	"internal/actorstest":    "actors",
	"internal/fakedevice":    "gpuexec",
	"internal/forward":       "encoder",
	"internal/measure/reads": "stress",
	"internal/policy":        "shapegroups",
}

// A backend sees the executor, its operations, the file of pipelines and internal
// packages: neither another backend, nor the rooms beside it. One that makes primitives
// sees what it makes them for, too. Nothing in gpuexec sees a backend.
var (
	backends      = []string{"gpuexec/cpu", "gpuexec/opencl", "gpuexec/vulkan", "gpuexec/cuda", "gpuexec/onednn"}
	backendImport = []string{"gpuexec/ops", "gpuexec/pipelinefile", "gpuexec/primitive", "gpuexec/artefacts", "gpuexec/internal", "internal", "fault", "limit"} // and gpuexec itself, without what lies below it
)

// A foreign module is used in some rooms; tests may use more of them. The
// reason for having it at all is in RATIONALE.md.
type foreign struct {
	path  string
	rooms []string // nil: everywhere
	tests bool     // any test may use it
}

var foreigns = []foreign{
	{path: "github.com/asynkron/protoactor-go", rooms: []string{"actors"}},
	{path: "github.com/dgraph-io/ristretto", rooms: []string{"gpuexec/blobstore/tiers"}},
	{path: "github.com/cespare/xxhash"},
	{path: "go.uber.org/zap"},
	{path: "golang.org/x/sys"},
	{path: "golang.org/x/term", rooms: []string{"cmd"}},
	{path: "google.golang.org/protobuf/encoding/protowire", rooms: []string{"internal/forward"}, tests: true},
	{path: "gonum.org/v1/plot", rooms: []string{"cmd", "internal/picture"}},
	{path: "github.com/tetratelabs/wazero", rooms: []string{"gpuexec/cpu"}, tests: true},
	{path: "github.com/ebitengine/purego", rooms: []string{"gpuexec", "stress"}, tests: true},
	{path: "github.com/anishathalye/porcupine", rooms: []string{"stress"}, tests: true},
	{path: "pgregory.net/rapid", rooms: []string{"stress"}, tests: true},
	{path: "go.uber.org/goleak", rooms: []string{"stress", "internal/drivertest"}, tests: true},
}

// imports finds wrong arrows and foreign modules in wrong rooms.
func (t *Tree) imports(f file) []Violation {
	var found []Violation
	if place(f.dir) < 0 {
		found = append(found, t.at("arrow", f, f.syntax.Package, "%s is in no room of the house: give it one, or add it to the order", f.dir))
	}
	for _, spec := range f.syntax.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused such a file
		}
		switch {
		case target == Module || strings.HasPrefix(target, Module+"/"):
			dir := strings.TrimPrefix(strings.TrimPrefix(target, Module), "/")
			if dir == "" {
				dir = "."
			}
			if what := arrow(f.dir, dir); what != "" && !f.test {
				found = append(found, t.at("arrow", f, spec.Pos(), "%s", what))
			}
		case isForeign(target):
			if what := misplaced(f, target); what != "" {
				found = append(found, t.at("foreign", f, spec.Pos(), "%s", what))
			}
		}
	}
	return found
}

// arrow says what is wrong with from importing to; empty where nothing is.
func arrow(from, to string) string {
	left, right := place(from), place(to)
	switch {
	case left < 0 || right < 0: // it is told of itself
		return ""
	case left > right || left == right && room(from) != room(to):
		return from + " must not import " + to + ", which does not stand to the right of it"
	}
	own, other := backend(from), backend(to)
	switch {
	case own != "" && own != other && to != "gpuexec" && !within(to, backendImport):
		return "the backend " + own + " must not import " + to + ": gpuexec, gpuexec/ops, gpuexec/pipelinefile, gpuexec/primitive, gpuexec/artefacts, gpuexec/internal, internal, limit and fault only"
	case own == "" && other != "" && room(from) == "gpuexec":
		return from + " must not import the backend " + other + ", which registers itself"
	}
	return ""
}

func room(dir string) string {
	if host, ok := lodgers[dir]; ok {
		return host
	}
	first, _, _ := strings.Cut(dir, "/")
	return first
}

func place(dir string) int {
	return slices.IndexFunc(order, func(rooms []string) bool { return slices.Contains(rooms, room(dir)) })
}

func backend(dir string) string {
	for _, b := range backends {
		if within(dir, []string{b}) {
			return b
		}
	}
	return ""
}

// isForeign: paths of the standard library have no dot in their first element.
func isForeign(target string) bool { return strings.Contains(room(target), ".") }

func misplaced(f file, target string) string {
	for _, m := range foreigns {
		if !within(target, []string{m.path}) {
			continue
		}
		if m.rooms == nil || within(f.dir, m.rooms) || f.test && m.tests {
			return ""
		}
		return target + " belongs in " + strings.Join(m.rooms, ", ") + " only"
	}
	return target + " is not among the modules that may be used"
}
