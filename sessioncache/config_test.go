package sessioncache_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
)

// R3: a config with many mistakes is refused for all of them, each with its field.
func TestConfigNamesEachMistake(t *testing.T) {
	_, err := sessioncache.Config{Groups: sessioncache.LimitOf(-1), Bytes: sessioncache.LimitOf(-2), Policy: "z", Keep: "q",
		Floor: sessioncache.Floor{Bytes: -3, Groups: -4}, Saved: []byte("zz")}.Validate()
	if !errors.Is(err, fault.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	for _, want := range []string{"Groups: ", "Bytes: ", "Policy: ", "Keep: ", "Floor: ", "-3 bytes and -4 groups", "Saved: ", "2 bytes: want what SavePolicy gave, or nothing"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not %q in %v", want, err)
		}
	}
	if reason, _ := fault.ReasonOf(sessionOf(sessioncache.Config{Saved: []byte("zz")})); reason != fault.Truncated {
		t.Errorf("Saved alone has the reason %q, want truncated", reason)
	}
	if err := sessionOf(sessioncache.Config{Floor: sessioncache.Floor{Groups: 65}}); err == nil || !strings.Contains(err.Error(), "Floor: ") {
		t.Errorf("a floor above the capacity: %v", err)
	}
}

func sessionOf(c sessioncache.Config) error { _, err := c.Validate(); return err }
