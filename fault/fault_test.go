package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// R3: the reason of an error is that of the outermost Error that has one.
func TestReasonOf(t *testing.T) {
	refused := &fault.Error{Op: "inner", Reason: fault.Outdated, Field: "build", Err: fault.ErrRefused}
	for name, c := range map[string]struct {
		err    error
		reason fault.Reason
		field  string
	}{
		"no error":      {nil, "", ""},
		"another error": {errors.New("other"), "", ""},
		"none":          {&fault.Error{Op: "a", Err: fault.ErrClosed}, "", ""},
		"its own":       {refused, fault.Outdated, "build"},
		"below":         {fmt.Errorf("more: %w", &fault.Error{Op: "outer", Err: refused}), fault.Outdated, "build"},
		"outermost":     {&fault.Error{Op: "outer", Reason: fault.Busy, Err: refused}, fault.Busy, ""},
	} {
		if reason, field := fault.ReasonOf(c.err); reason != c.reason || field != c.field {
			t.Errorf("%s: %q %q, want %q %q", name, reason, field, c.reason, c.field)
		}
	}
}
