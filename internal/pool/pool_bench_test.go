package pool_test

import (
	"strconv"
	"testing"

	"github.com/kiln-cache/kiln/internal/pool"
	"github.com/kiln-cache/kiln/limit"
)

// Q1, Q3: what is given to a claim, or to a floor that is owed, costs the same however many
// others wait.
func BenchmarkGiven(b *testing.B) {
	for _, floor := range []int64{0, 5} {
		for _, n := range []int{1e2, 1e3, 1e4, 1e5} {
			b.Run(map[int64]string{0: "claims", 5: "floors"}[floor]+"/"+strconv.Itoa(n), func(b *testing.B) {
				var gifts []pool.Gift
				var claims []*pool.Claim
				p, _ := pool.New(limit.Of(int64(n) * 10))
				rich, _ := p.Join(0, func(g pool.Gift) { gifts = append(gifts, g) })
				rich.Reserve(int64(n) * 10)
				join := func() {
					m, err := p.Join(floor, pool.Gift.Answered)
					if err != nil {
						b.Fatal(err)
					}
					claims = append(claims, m.Claim(5, func(*pool.Claim) {}))
				}
				for range n {
					join()
				}
				for i := 0; b.Loop(); i++ {
					if i == n { // all have theirs
						b.StopTimer()
						gifts, claims, i = nil, nil, 0
						p, _ = pool.New(limit.Of(int64(n) * 10))
						rich, _ = p.Join(0, func(g pool.Gift) { gifts = append(gifts, g) })
						rich.Reserve(int64(n) * 10)
						for range n {
							join()
						}
						b.StartTimer()
					}
					rich.Release(gifts[i].Bytes)
					gifts[i].Answered()
					if !claims[i].Accept() {
						b.Fatal("what was given is not there")
					}
				}
			})
		}
	}
}
