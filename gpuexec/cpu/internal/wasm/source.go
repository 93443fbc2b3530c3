package wasm

import "embed"

// Source holds this package's own files: they decide the bytes of a module, so
// their digest is part of what compiled kernels are keyed by.
//
//go:embed *.go
var Source embed.FS
