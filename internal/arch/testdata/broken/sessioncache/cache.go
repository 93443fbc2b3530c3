// Package sessioncache has a goroutine without an owner.
package sessioncache

import (
	_ "github.com/asynkron/protoactor-go/actor"
	_ "github.com/kiln-cache/kiln/constants"
)

func Open() { go func() {}() }
