// Command tool may import the root and start goroutines.
package main

import (
	_ "example.test/extra" // but not this

	_ "github.com/kiln-cache/kiln"
)

func main() { go func() {}() }
