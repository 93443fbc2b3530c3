package kiln_test

import (
	"testing"

	"github.com/kiln-cache/kiln"
)

func BenchmarkHit(b *testing.B) {
	r := must(kiln.Open(kiln.Config{Lookup: environment(nil)}))
	defer r.Close(ctx)
	s := must(r.Session(kiln.SessionConfig{}))
	g := must(s.Group(ctx, []int64{1}))
	defer g.Close()
	must(kiln.Get(ctx, g, "query", of("k", new(int))))
	id := s.Intern("query")
	ref, _ := kiln.Refer[*int](g, id)
	recipe := of("k", new(int))
	b.Run("reference", func(b *testing.B) {
		for b.Loop() {
			if !ref.Resident() || ref.Value() == nil {
				b.Fatal()
			}
		}
	})
	b.Run("id", func(b *testing.B) {
		for b.Loop() {
			if _, ok := kiln.LookupID[*int](g, id); !ok {
				b.Fatal()
			}
		}
	})
	b.Run("name", func(b *testing.B) {
		for b.Loop() {
			if _, ok := kiln.Lookup[*int](g, "query"); !ok {
				b.Fatal()
			}
		}
	})
	b.Run("name on a lane", func(b *testing.B) {
		for b.Loop() {
			kiln.Lookup[*int](g, "query", kiln.OnLane(3))
		}
	})
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			must(kiln.Get(ctx, g, "query", recipe))
		}
	})
	room := must(s.Cache().Group(ctx, g.Shape()))
	defer room.Close()
	b.Run("room: name", func(b *testing.B) {
		for b.Loop() {
			if _, ok := room.Lookup("query", 0); !ok {
				b.Fatal()
			}
		}
	})
	b.Run("room: id", func(b *testing.B) {
		for b.Loop() {
			if _, ok := room.LookupID(id); !ok {
				b.Fatal()
			}
		}
	})
}
