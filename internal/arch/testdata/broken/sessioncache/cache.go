// Package sessioncache has a goroutine without an owner.
package sessioncache

import (
	_ "github.com/asynkron/protoactor-go/actor"
	"github.com/kiln-cache/kiln/constants"
	"github.com/kiln-cache/kiln/shapegroups"
)

func Open() { go func() {}() }

func wire(c *constants.Cache) {
	c.Offer()
	c.Used()
	c.Tested()
	c.Shown()
	shapegroups.Home()
	constants.Shrink()
}
