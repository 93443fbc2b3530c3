package rooms

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/env"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/limit"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// Kinds are the components of this build, by the name that open knows.
func Kinds() map[string]engine.Kind {
	return map[string]engine.Kind{
		"artefacts":   {Options: "cap bytes hash blobs store linger", Open: openArtefacts},
		"constants":   {Options: "policy hash linger", Open: openConstants},
		"descriptors": {Options: "cache", Open: openDescriptors},
		"executor":    {Options: "queue workers linger", Open: openExecutor},
		"pipelines":   {Options: "hash merge limit linger", Open: openPipelines},
		"session":     {Options: "groups bytes policy bucket cache hash linger", Open: openSession},
		"store":       {Options: "dir cap policy sync lease hash", Open: openStore},
	}
}

// Statements are those that need no component but a room.
func Statements() engine.Verbs {
	return engine.Verbs{
		"key":  {Least: 1, Most: 1, Options: keyFields + " like unhashable", Run: makeKey},
		"same": {Least: 2, Most: 2, Run: sameKeys},
	}
}

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

// listOf reads a list of what parse reads; the empty one is not nil.
func listOf[T any](text string, parse func(string) (T, error)) ([]T, error) {
	all := []T{}
	for _, word := range list(text) {
		v, err := parse(word)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// howMany is the number of those that are.
func howMany[T any](all []T, are func(T) bool) (script.Result, error) {
	n := 0
	for _, v := range all {
		if are(v) {
			n++
		}
	}
	return engine.Number(n), nil
}

// counted is the number of that name; unknown says that there is none.
func counted[N int64 | uint64](counts map[string]N, name, unknown string) (script.Result, error) {
	n, ok := counts[name]
	if !ok {
		return script.Result{}, fault.Invalidf("conform: count", unknown, name)
	}
	return engine.Number(int64(n)), nil
}
