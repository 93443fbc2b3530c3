package size_test

import (
	"errors"
	"math"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/size"
	"github.com/kiln-cache/kiln/limit"
)

// P7: a size may have a unit; without one it counts in that of its setting.
func TestParse(t *testing.T) {
	for text, want := range map[string]int64{
		"5GiB": 5 << 30, "5GB": 5e9, "5G": 5 << 30, "512KiB": 512 << 10, "512KB": 512e3, "512K": 512 << 10, "7MiB": 7 << 20, "7MB": 7e6, "7M": 7 << 20,
		"2TiB": 2 << 40, "2TB": 2e12, "2T": 2 << 40, "100B": 100, "0B": 0, "0": 0, "3": 3 << 20, "007": 7 << 20,
		"9223372036854775807B": math.MaxInt64, "8796093022207": 8796093022207 << 20, "8388607TiB": 8388607 << 40,
	} {
		got, err := size.Parse(text, size.MiB)
		if err != nil || got != limit.Of(want) {
			t.Errorf("%s: %v %v, want %d", text, got, err, want)
		}
		if again, err := size.Parse(size.Format(got, size.MiB), size.MiB); err != nil || again != got {
			t.Errorf("%s: written as %s, which is %v %v", text, size.Format(got, size.MiB), again, err)
		}
	}
	if got, err := size.Parse("100", size.Byte); err != nil || got != limit.Of(100) {
		t.Errorf("100 bytes: %v %v", got, err)
	}
	if got, err := size.Parse(limit.Word, size.MiB); err != nil || !got.IsUnlimited() || size.Format(got, size.MiB) != limit.Word {
		t.Errorf("%v %v", got, err)
	}
	if got := size.Format(limit.Limit{}, size.MiB); got != "" {
		t.Errorf("not given: %q", got)
	}
}

// P7: what is no size is refused, whatever it looks like.
func TestParseRefuses(t *testing.T) {
	for _, text := range []string{"", "-1", "+1", "1.5", "1.5GiB", "5 GiB", "5GiB ", " 5", "5gib", "5kb", "5iB", "5PiB", "5GiBB", "GiB", "B", "0x10", "1e3", "1_000",
		"unlimitedB", "unlimitedGiB", "unlimitedMiB", "Unlimited", "-5B", "8796093022208", "8388608TiB", "9223372036854775808B", "99999999999999999999T"} {
		if got, err := size.Parse(text, size.MiB); !errors.Is(err, fault.ErrInvalid) || got.Given() {
			t.Errorf("%q: %v %v", text, got, err)
		}
	}
}
