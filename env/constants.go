package env

import (
	"fmt"
	"strings"

	"github.com/kiln-cache/kiln/limit"
)

// Constants is the capacity of the constant-tensor cache of an engine kind, on
// each device of the kind.
type Constants struct {
	Capacity limit.Limit // MiB
	Policy   ConstantPolicy
}

// ConstantPolicy is what happens when a constant does not fit (SPEC T4).
type ConstantPolicy string

// The policies as the variable writes them.
const (
	NoEvict ConstantPolicy = "NO_EVICT" // the default
	Cost    ConstantPolicy = "COST"
)

// defaultConstants is what a kind has without an entry (SPEC T2, T4).
var defaultConstants = Constants{Capacity: limit.Unlimited, Policy: NoEvict}

func (c Constants) String() string {
	if c.Policy == NoEvict {
		return c.Capacity.String()
	}
	return c.Capacity.String() + ":" + string(c.Policy)
}

func resetConstants(s *Settings) {
	s.CPUConstants = Setting[Constants]{Value: defaultConstants, Source: Default}
	s.GPUConstants = s.CPUConstants
}

// readConstants reads kind:size[:policy] entries separated by semicolons. Each is
// taken or refused alone, and the last one of a kind wins as a whole. An entry of
// blanks alone, as after a last semicolon, is no entry.
func readConstants(s *Settings, name, text string) {
	for entry := range strings.SplitSeq(text, ";") {
		entry = strings.Trim(entry, " \t")
		if entry == "" {
			continue
		}
		field, value, err := s.constantEntry(entry)
		if err != nil {
			s.refuse(name, entry, quote(entry)+": "+why(err))
			continue
		}
		*field = Setting[Constants]{Value: value, Source: Environment, Name: name}
	}
}

func (s *Settings) constantEntry(entry string) (*Setting[Constants], Constants, error) {
	kind, rest, _ := strings.Cut(entry, ":")
	var field *Setting[Constants]
	switch lower(kind) {
	case "cpu":
		field = &s.CPUConstants
	case "gpu":
		field = &s.GPUConstants
	default:
		return nil, Constants{}, fmt.Errorf("the kind %s is unknown: want cpu:MiB or gpu:MiB", quote(kind))
	}
	size, policy, named := strings.Cut(rest, ":")
	capacity, err := limit.Parse(size)
	if err != nil {
		return nil, Constants{}, err
	}
	value := Constants{Capacity: capacity, Policy: NoEvict}
	if named {
		switch lower(policy) {
		case "no_evict":
		case "cost":
			value.Policy = Cost
		default:
			return nil, Constants{}, fmt.Errorf("the policy %s is unknown: want %s or %s", quote(policy), NoEvict, Cost)
		}
	}
	return field, value, nil
}

// lower folds the case of ASCII alone: to Unicode the long s is an s too.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + ('a' - 'A')
		}
		return r
	}, text)
}

// showConstants gives the list that stands for the settings of all kinds.
func showConstants(s *Settings) (string, Source, string) {
	shown, source, name := "", Default, ""
	for _, kind := range []struct {
		word string
		Setting[Constants]
	}{{"cpu", s.CPUConstants}, {"gpu", s.GPUConstants}} {
		if shown != "" {
			shown += ";"
		}
		shown += kind.word + ":" + kind.Value.String()
		if kind.Source == API || source == Default {
			source, name = kind.Source, kind.Name
		}
	}
	return shown, source, name
}
