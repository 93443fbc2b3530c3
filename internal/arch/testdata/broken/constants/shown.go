package constants

import "github.com/kiln-cache/kiln/internal/locks"

// Held shows what is internal, and so does what follows.
type Held struct{ Lock *locks.Lock }

type Lock = locks.Lock

func ByName() map[locks.Name]int { return nil }

type Guarded[T interface{ *locks.Lock }] struct{ by T }
