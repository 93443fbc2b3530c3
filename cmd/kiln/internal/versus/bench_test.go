package versus

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// BenchmarkAgainstOneDNN reports the median of our GFLOP/s and of the ratio to
// oneDNN's. The weights of the small shapes go round as those of a model do.
func BenchmarkAgainstOneDNN(b *testing.B) {
	shapes := []Config{{M: 128, K: 768, N: 3072}, {M: 128, K: 3072, N: 768}}
	for _, m := range []int{1, 4, 8, 14, 20, 32} {
		for _, kn := range [][2]int{{384, 384}, {384, 1536}, {1536, 384}} {
			shapes = append(shapes, Config{M: m, K: kn[0], N: kn[1], Weights: 42 << 20 / (4 * kn[0] * kn[1])},
				Config{M: m, K: kn[0], N: kn[1]})
		}
	}
	for _, c := range shapes {
		b.Run(fmt.Sprintf("%dx%dx%d/weights=%d", c.M, c.K, c.N, max(1, c.Weights)), func(b *testing.B) {
			c.Rounds = 7
			var r Result
			for b.Loop() {
				var err error
				if r, err = Compare(b.Context(), c); errors.Is(err, fault.ErrUnavailable) {
					b.Skip(err)
				} else if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(r.Ours.Median, "GFLOP/s")
			b.ReportMetric(r.Theirs.Median, "peer-GFLOP/s")
			b.ReportMetric(r.Ratio.Median, "ratio")
			b.ReportMetric(r.Ratio.Min, "min-ratio")
			b.ReportMetric(r.Ratio.Max, "max-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
