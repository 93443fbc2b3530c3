// Package attic stands in no room.
package attic

import _ "github.com/kiln-cache/kiln/internal/clean"
