package rooms

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
)

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

// lease is a room's lease as a script keeps it.
type lease struct {
	value func() any
	end   func()
}

func (l lease) Value() (string, bool) { return l.value().(*outside.Value).Text, true }
func (l lease) End()                  { l.end() }

// settingsOf are those of the script's environment, in which the variables with
// such a part in their name are the component's.
func settingsOf(w *outside.World, part string) env.Settings {
	settings := env.Read(w.Env.Lookup)
	refuse(w, settings.Refusals, part)
	return settings
}

// refuse counts the refusals of variables with one of the parts in their name.
func refuse(w *outside.World, refusals []env.Refusal, parts ...string) {
	for _, r := range refusals {
		if slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(r.Name, part) }) {
			w.Refused.Add(r.Name)
		}
	}
}

// fixedHash is the placing hash of hash=N, or nil where that was not given.
func fixedHash(c *engine.Call) func(string) uint64 {
	if _, ok := c.Option("hash"); !ok {
		return nil
	}
	n := c.Int("hash", 0)
	return func(string) uint64 { return uint64(n) }
}

// parseBytes reads a size or the word unlimited.
func parseBytes(text string) (limit.Limit, error) {
	if n, err := engine.ParseSize(text); err == nil && text != limit.Word {
		return limit.Parse(strconv.FormatUint(n, 10))
	}
	return limit.Parse(text)
}
