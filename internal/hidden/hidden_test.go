package hidden_test

import (
	"testing"

	"github.com/kiln-cache/kiln/internal/hidden"
)

type config struct {
	Name   string
	size   int
	number int8
}

func init() {
	hidden.Field(func(c *config, n int) { c.size = n })
	hidden.Field(func(c *config, n int8) { c.number = n })
}

// Each type of value has its field, and the config that was given stays as it was.
func TestWith(t *testing.T) {
	given := config{Name: "a"}
	got := hidden.With(given, 3, int8(4))
	if got != (config{"a", 3, 4}) || given != (config{Name: "a"}) {
		t.Errorf("%+v of %+v", got, given)
	}
	defer func() {
		if recover() == nil {
			t.Error("a field that nobody declared was set")
		}
	}()
	hidden.With(given, "b")
}
