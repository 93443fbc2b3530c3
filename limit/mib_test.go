package limit_test

import (
	"math"
	"testing"

	"github.com/kiln-cache/kiln/limit"
)

func TestMiB(t *testing.T) {
	for _, c := range []struct{ mib, bytes limit.Limit }{
		{limit.Limit{}, limit.Limit{}},
		{limit.Unlimited, limit.Unlimited},
		{limit.Of(0), limit.Of(0)},
		{limit.Of(3), limit.Of(3 << 20)},
		{limit.Of(math.MaxInt64 >> 20), limit.Of(math.MaxInt64 >> 20 << 20)},
		{limit.Of(math.MaxInt64>>20 + 1), limit.Unlimited},
		{limit.Of(math.MaxInt64), limit.Unlimited},
	} {
		if got := c.mib.MiB(); got != c.bytes {
			t.Errorf("%s MiB are %s bytes, want %s", c.mib, got, c.bytes)
		}
	}
}
