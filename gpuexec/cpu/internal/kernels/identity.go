package kernels

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"io/fs"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/wasm"
	"github.com/kiln-cache/kiln/internal/self"
)

//go:embed *.go
var source embed.FS

const compilerModule = "github.com/tetratelabs/wazero"

// Identity names what turns a Spec into machine code, the build identity of
// SPEC P3: a digest of the emitter's sources, the compiler's version, and the
// platform. A build that does not record the compiler's version, such as a test
// or one of a workspace with the compiler in it, is named by the digest of its
// executable, or library, instead. It is empty if that cannot be read either; nothing may be
// stored or loaded then (SPEC P12).
func Identity() string { return identity() }

var identity = sync.OnceValue(func() string {
	compiler := compilerVersion()
	digest, err := sourceDigest()
	if compiler == "" || err != nil {
		return ""
	}
	return "emitter " + digest + " compiler " + compiler + " " + runtime.GOARCH + "-" + runtime.GOOS
})

// compilerVersion names the wazero in this executable.
func compilerVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if version := recorded(info.Deps); version != "" {
			return version
		}
	}
	f, err := self.Open()
	if err != nil {
		return ""
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ""
	}
	return "in executable " + hex.EncodeToString(h.Sum(nil))
}

// recorded is the version of the compiler among the modules of a build; empty if
// it is none, or built from a folder that may be edited: of a workspace, whose
// modules are all "(devel)", or of a replacement without a version.
func recorded(deps []*debug.Module) string {
	i := slices.IndexFunc(deps, func(m *debug.Module) bool { return m.Path == compilerModule })
	if i < 0 {
		return ""
	}
	m := deps[i]
	name := m.Version
	if m.Replace != nil {
		m = m.Replace
		name = m.Path + "@" + m.Version
	}
	if m.Version == "" || m.Version == "(devel)" {
		return ""
	}
	return name
}

// instructionSets names the compiler's instruction set bits as Linux does. nil =
// a bit that this table does not know. The compiler takes LZCNT for granted where
// it finds the three of its third bit.
func instructionSets(bits uint64) []string {
	var names [][]string
	switch runtime.GOARCH {
	case "amd64":
		names = [][]string{{"sse4_1"}, {"bmi1"}, {"bmi1", "bmi2", "popcnt"}}
	case "arm64":
		names = [][]string{{"atomics"}}
	}
	sets := []string{}
	for bit := range 64 {
		switch {
		case bits&(1<<bit) == 0:
		case bit >= len(names):
			return nil
		default:
			sets = append(sets, names[bit]...)
		}
	}
	slices.Sort(sets)
	return slices.Compact(sets)
}

// sourceDigest covers the names and contents of the sources, tests apart.
func sourceDigest() (string, error) {
	h := sha256.New()
	for _, files := range []embed.FS{wasm.Source, source} {
		entries, err := fs.ReadDir(files, ".") // sorted by name
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			text, err := fs.ReadFile(files, e.Name())
			if err != nil {
				return "", err
			}
			content := sha256.Sum256(text)
			name := sha256.Sum256([]byte(e.Name()))
			h.Write(name[:])
			h.Write(content[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
