package blobstore

import "github.com/kiln-cache/kiln/internal/vfs"

// SetFS makes a store open its folders with open; nil = the machine's.
func SetFS(c *Config, open func(root string) vfs.FS) { c.fs = open }
