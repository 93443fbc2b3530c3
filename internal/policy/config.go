package policy

import (
	"math"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// ErrInvalid is what a bad configuration or saved state unwraps to.
var ErrInvalid = fault.ErrInvalid

// Unlimited as a number of groups sets no limit.
const Unlimited = math.MaxInt

// Periods in requests, as multiples of the capacity (SPEC S1, S6).
const (
	halfLife   = 64 // use counts halve, and a group not asked for drops a class
	remembered = 64 // use counts kept
	// leastGroups stands for the capacity of a session without one in groups.
	leastGroups = 64
)

// What a lowered capacity has no room for is forgotten in steps: that many shapes when it
// is lowered, and with each request to come a few.
const (
	atOnce = 1024
	few    = 4
)

// unarranged is how many groups that were used are put into order at a time.
const unarranged = 512

// Kind is the rule that chooses a victim.
type Kind string

// The policies of SPEC S1.
const (
	FIFO  Kind = "fifo"  // the group registered first; heeds neither use nor cost
	LRU   Kind = "lru"   // the group used longest ago
	Sieve Kind = "sieve" // the oldest that was not used again since it was last passed over
	Duel  Kind = "duel"  // recency or use counts, whichever missed less of late
)

// Kinds lists the policies; the last one is the default.
func Kinds() []Kind { return []Kind{FIFO, LRU, Sieve, Duel} }

// ParseKind reads a policy's name; the empty name is the default, duel.
func ParseKind(name string) (Kind, error) {
	if name == "" {
		return Duel, nil
	}
	if k := Kind(name); slices.Contains(Kinds(), k) {
		return k, nil
	}
	return "", fault.Invalidf("policy: parse kind", "%.64q is none of %v", name, Kinds())
}

// Keep says which requested groups are registered (SPEC S7).
type Keep string

// The values of keep.
const (
	Always Keep = "always" // every one; the default
	Worth  Keep = "worth"  // those worth what they would displace; duel only
)

// ParseKeep reads a value of keep; the empty one is Always.
func ParseKeep(word string) (Keep, error) {
	switch k := Keep(word); k {
	case "":
		return Always, nil
	case Always, Worth:
		return k, nil
	}
	return "", fault.Invalidf("policy: parse keep", "%.64q is neither always nor worth", word)
}

// Config says how a session evicts. Kind and Keep may be empty.
type Config struct {
	Kind   Kind
	Groups int // capacity in groups, at least 0, or Unlimited
	Keep   Keep
}

// Validate gives the config with defaults filled in, or ErrInvalid.
func (c Config) Validate() (Config, error) {
	kind, err := ParseKind(string(c.Kind))
	if err != nil {
		return c, err
	}
	keep, err := ParseKeep(string(c.Keep))
	if err != nil {
		return c, err
	}
	if c.Groups < 0 {
		return c, fault.Invalidf("policy: configure", "%d groups: want 0 or more, or unlimited", c.Groups)
	}
	return Config{Kind: kind, Groups: c.Groups, Keep: keep}, nil
}
