// Package constants imports to its left.
package constants

import _ "github.com/kiln-cache/kiln/gpuexec"
