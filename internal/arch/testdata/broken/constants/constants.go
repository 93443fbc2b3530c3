// Package constants imports to its left, and shows what only a sibling needs.
package constants

import _ "github.com/kiln-cache/kiln/gpuexec"

type Cache struct {
	Bytes   uint64
	Cost    float64
	Entries int // a field may be called so
}

// Offer is for sessioncache alone; so is what follows, but users call it too.
func (*Cache) Offer()  {}
func (*Cache) Used()   {}
func (*Cache) Tested() {}
func (*Cache) Shown()  {}

// Alone is called by nobody at all.
func (*Cache) Alone() {}

func (*Cache) GetOrCreate(bytes int) (cost float64) { return 0 }

func (*Cache) HeldBytes() int64 { return 0 }

func (*Cache) Fill(bytes int) {}

func (*Cache) Work() (cost float64) { return 0 }

func (*Cache) MostBytes() int { return 0 }

// Shrink is for sessioncache alone, like Offer.
func Shrink() {}
