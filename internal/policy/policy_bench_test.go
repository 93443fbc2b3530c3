package policy_test

import (
	"math/rand/v2"
	"testing"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/shapegroups"
)

// BenchmarkUse is the whole cost of one acquisition of a resident group at 256
// groups, skewed as real streams are.
func BenchmarkUse(b *testing.B) {
	for _, kind := range policy.Kinds() {
		b.Run(string(kind), func(b *testing.B) {
			p, groups := filled(b, policy.Config{Kind: kind, Groups: 256}, 256)
			draw := skewed(len(groups))
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p.Use(groups[draw[i%len(draw)]])
				i++
			}
		})
	}
}

// BenchmarkChurn is a miss in a full session: request, victim, remove, admit.
func BenchmarkChurn(b *testing.B) {
	for _, groups := range []int{256, 1024, 16384} {
		for _, kind := range policy.Kinds() {
			b.Run(string(kind)+"/"+must(shapegroups.N(int64(groups))).String(), func(b *testing.B) {
				p, _ := filled(b, policy.Config{Kind: kind, Groups: groups}, groups)
				shapes := make([]shapegroups.Shape, 4*groups)
				for i := range shapes {
					shapes[i] = must(shapegroups.N(int64(groups + i)))
				}
				i := 0
				for b.Loop() {
					shape := shapes[i%len(shapes)]
					i++
					if p.Request(shape) == nil {
						p.Remove(p.Victim(nil, policy.Busy))
						p.Admit(shape, 1, 1)
					}
				}
			})
		}
	}
}

// filled is a policy with so many resident groups.
func filled(t testing.TB, c policy.Config, n int) (*policy.Policy, []*policy.Group) {
	p, err := policy.New(c)
	if err != nil {
		t.Fatal(err)
	}
	groups := make([]*policy.Group, n)
	for i := range groups {
		shape := must(shapegroups.N(int64(i)))
		p.Request(shape)
		groups[i] = p.Admit(shape, 1, 1)
	}
	return p, groups
}

// skewed draws places below n, low ones more often.
func skewed(n int) []int {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 4, uint64(n-1))
	draw := make([]int, 1<<14)
	for i := range draw {
		draw[i] = int(zipf.Uint64())
	}
	return draw
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
