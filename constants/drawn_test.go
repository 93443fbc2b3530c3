package constants

import (
	"slices"
	"testing"

	"github.com/kiln-cache/kiln/limit"
)

// owner asks for a tensor that nobody has yet.
func owner(t *testing.T, e *Engine, bytes int64, opts Options) *Promise {
	t.Helper()
	out, err := e.GetOrAdd(ctx, key("k"), bytes, opts)
	if err != nil || out.Owner == nil {
		t.Fatal(out, err)
	}
	return out.Owner
}

// T7: when Close returns, the callback of what it removed has run, with its reason.
// (This case and the next two were found by drawing.)
func TestClosedIsCalledBack(t *testing.T) {
	c, e := open(t, Config{})
	var told []Removal
	l, err := owner(t, e, 1, Options{Removed: func(why Removal) { told = append(told, why) }}).Fulfil("v", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.End()
	if err := c.Close(ctx); err != nil || !slices.Equal(told, []Removal{Closed}) {
		t.Errorf("told %v, %v", told, err)
	}
}

// T2, T7: what is delivered after the capacity has become 0 is freed with its last
// lease, once.
func TestDeliveredToACapacityOfZero(t *testing.T) {
	c, e := open(t, Config{})
	o, freed := owner(t, e, 1, Options{}), 0
	if err := c.SetCapacity(ctx, CPU, limit.Of(0)); err != nil {
		t.Fatal(err)
	}
	l, err := o.Fulfil("v", 1, func() { freed++ })
	if err != nil || l.Resident() || freed != 0 {
		t.Fatalf("resident %v, freed %d times, %v", l.Resident(), freed, err)
	}
	l.End()
	if err := c.Close(ctx); err != nil || freed != 1 {
		t.Errorf("freed %d times, %v", freed, err)
	}
}

// T2, T3: a capacity that is set later holds: one byte more than it has is bypassed.
func TestOneByteMoreThanIsSet(t *testing.T) {
	c, e := open(t, Config{})
	if err := c.SetCapacity(ctx, CPU, limit.Of(1)); err != nil {
		t.Fatal(err)
	}
	if out, err := e.GetOrAdd(ctx, key("k"), mib+1, Options{}); err != nil || out.Bypass != Full {
		t.Errorf("%+v, %v", out, err)
	}
	owner(t, e, mib, Options{}).Abandon()
}
