// Command tool may import the root and start goroutines.
package main

import (
	"log/slog"

	_ "example.test/extra" // but not this

	_ "github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/constants"
)

func main() {
	go func() {}()
	new(constants.Cache).Used()
	slog.Error("nothing went wrong", "err", nil, "error", nil)
}
