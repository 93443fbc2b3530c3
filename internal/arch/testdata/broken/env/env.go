// Package env may read the environment, and sees no room at its side.
package env

import (
	"os"

	_ "github.com/kiln-cache/kiln/shapegroups"
)

func Home() string { return os.Getenv("HOME") }
