package rooms

import "github.com/kiln-cache/kiln/stress/conform/internal/engine"

// Kinds are the components of this build, by the name that open knows.
func Kinds() map[string]engine.Kind {
	return map[string]engine.Kind{
		"artefacts":   artefactsKind(),
		"constants":   constantsKind(),
		"descriptors": descriptorsKind(),
		"executor":    executorKind(),
		"pipelines":   pipelinesKind(),
		"session":     sessionKind(),
		"store":       storeKind(),
	}
}

// Statements are those that need no component but a room.
func Statements() engine.Verbs { return keyStatements() }
