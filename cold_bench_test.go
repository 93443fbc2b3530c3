package kiln_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// What a cold miss costs beside its creator: the name's part, the artefact's, and
// both behind the door.
func BenchmarkCold(b *testing.B) {
	ctx := b.Context()
	must := func(err error) {
		if err != nil {
			b.Helper()
			b.Fatal(err)
		}
	}
	asked := 0 // never the same key twice
	run := func(what string, get func(key string) error) {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				asked++
				must(get(strconv.Itoa(asked)))
			}
		})
	}
	shape, err := shapegroups.Of([]int64{1})
	must(err)

	room, err := sessioncache.Open(sessioncache.Config{})
	must(err)
	defer func() { must(room.Close(context.Background())) }()
	names, err := room.Group(ctx, shape)
	must(err)
	defer names.Close()
	run("name", func(key string) error {
		_, _, err := names.Get(ctx, key, sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			return sessioncache.Value{Any: 1}, nil
		})
		return err
	})

	cache, err := artefacts.Open(artefacts.Config{})
	must(err)
	defer func() { must(cache.Close(context.Background())) }()
	run("artefact", func(key string) error {
		lease, _, err := cache.Get(ctx, artefacts.Request{Key: key, Backend: "go", Create: func(context.Context) (artefacts.Built, error) {
			return artefacts.Built{Value: 1}, nil
		}})
		if err == nil {
			lease.End()
		}
		return err
	})

	rt, err := kiln.Open(kiln.Config{})
	must(err)
	defer func() { must(rt.Close(context.Background())) }()
	session, err := rt.Session(kiln.SessionConfig{Name: "cold"})
	must(err)
	group, err := session.Group(ctx, []int64{1})
	must(err)
	defer group.Close()
	run("both", func(key string) error {
		_, err := kiln.Get(ctx, group, key, kiln.Recipe[int]{Key: key, Make: func(context.Context) (kiln.Made[int], error) {
			return kiln.Made[int]{Value: 1}, nil
		}})
		return err
	})
}
