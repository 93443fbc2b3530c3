// Package cpu imports what a backend may, its sibling and a room beside it.
package cpu

import (
	_ "github.com/kiln-cache/kiln/constants"
	_ "github.com/kiln-cache/kiln/gpuexec/cuda"
	_ "github.com/kiln-cache/kiln/gpuexec/ops"
	_ "github.com/kiln-cache/kiln/internal/clean"
)
