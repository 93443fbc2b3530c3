// Package kiln is the root and may import every room but cmd and stress.
package kiln

import (
	_ "github.com/kiln-cache/kiln/env"
	_ "github.com/kiln-cache/kiln/gpuexec/cpu"
	_ "github.com/kiln-cache/kiln/sessioncache"
)
