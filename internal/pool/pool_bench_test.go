package pool_test

import (
	"strconv"
	"testing"
	"time"

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

// F6, Q1: what it costs to ask for a floor that n members have to give for, and each of their
// answers: the one who joins asks a bounded number, and each answer has one more asked.
func BenchmarkAsked(b *testing.B) {
	for _, n := range []int{1e2, 1e3, 1e4, 1e5} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var joins, answers time.Duration
			for b.Loop() {
				b.StopTimer()
				var asked []*pool.Member
				var gifts []pool.Gift
				p, _ := pool.New(limit.Of(int64(n)))
				for range n {
					var m *pool.Member
					m, _ = p.Join(0, func(g pool.Gift) { asked, gifts = append(asked, m), append(gifts, g) })
					m.Reserve(1)
				}
				b.StartTimer()
				began := time.Now()
				if _, err := p.Join(int64(n), nil); err != nil {
					b.Fatal(err)
				}
				joins += time.Since(began)
				for i := 0; i < len(gifts); i++ {
					began := time.Now()
					asked[i].Release(gifts[i].Bytes)
					gifts[i].Answered()
					answers += time.Since(began)
				}
			}
			b.ReportMetric(float64(joins.Nanoseconds())/float64(b.N), "ns/join")
			b.ReportMetric(float64(answers.Nanoseconds())/float64(b.N*n), "ns/answer")
		})
	}
}

// F6: what one release costs that gives n claims what they wait for.
func BenchmarkReleaseForMany(b *testing.B) {
	for _, n := range []int{1e3, 1e4, 1e5} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				p, _ := pool.New(limit.Of(int64(n) * 10))
				rich, _ := p.Join(0, func(pool.Gift) {})
				rich.Reserve(int64(n) * 10)
				for range n {
					m, _ := p.Join(0, nil)
					m.Claim(5, func(*pool.Claim) {})
				}
				b.StartTimer()
				rich.Release(int64(n) * 5)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/claim")
		})
	}
}
