package main

import (
	"runtime"
	"runtime/debug"

	"github.com/kiln-cache/kiln/internal/measure/incumbent"
	"github.com/kiln-cache/kiln/internal/processor"
)

// machine is where and with what the figures were taken: the first JSON line.
type machine struct {
	Processor  string   `json:"processor"`
	Processors int      `json:"processors"`
	GOMAXPROCS int      `json:"gomaxprocs"`
	System     string   `json:"system"`
	Go         string   `json:"go"`
	OneDNN     string   `json:"onednn,omitempty"` // its version; empty = not measured
	Libraries  []string `json:"libraries"`        // path and version of what is compared
	Rounds     int      `json:"rounds"`
	Slot       string   `json:"slot"`
}

// compared are the modules whose versions are shown.
var compared = []string{
	"github.com/puzpuzpuz/xsync/v4", "github.com/maypok86/otter/v2", "github.com/dgraph-io/ristretto/v2",
	"github.com/Yiling-J/theine-go", "github.com/hashicorp/golang-lru/v2", "golang.org/x/sync",
}

func thisMachine(s settings, n *incumbent.Process) machine {
	model, _ := processor.Read()
	m := machine{
		Processor: model, Processors: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(),
		Rounds: s.rounds, Slot: s.slot.String(),
	}
	if n != nil {
		m.OneDNN = n.Version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return m // not built as a module: the versions are not known
	}
	for _, path := range compared {
		for _, dep := range info.Deps {
			if dep.Path == path {
				m.Libraries = append(m.Libraries, path+" "+dep.Version)
			}
		}
	}
	return m
}
