package env_test

import (
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/env"
)

// T10: entries are taken or refused one by one. What is left when the refused
// ones are struck out means the same, and what the table shows reads back.
func FuzzConstantCapacities(f *testing.F) {
	for _, seed := range []string{"cpu:10240;gpu:2048", " cpu:5 ; gpu:6 ", "cpu:1.9;gpu:12abc;cpu:4", "cpu:2:COST;gpu:2:NO_EVICT", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := read(map[string]string{env.ConstantCapacities: text})
		entries := 0
		var kept []string
		refused := s.Refusals
		for entry := range strings.SplitSeq(text, ";") {
			bare := strings.Trim(entry, " \t")
			if bare == "" {
				continue
			}
			entries++
			if len(refused) > 0 && refused[0].Entry == bare {
				refused = refused[1:]
				continue
			}
			kept = append(kept, entry)
		}
		if len(refused) != 0 || len(kept)+len(s.Refusals) != entries {
			t.Fatalf("%q: %d entries, refused %v", text, entries, s.Refusals)
		}
		same := read(map[string]string{env.ConstantCapacities: strings.Join(kept, ";")})
		if len(same.Refusals) != 0 || same.CPUConstants != s.CPUConstants || same.GPUConstants != s.GPUConstants {
			t.Fatalf("%q without what was refused: %+v; before %+v", text, same, s)
		}
		shown := row(t, s, env.ConstantCapacities).Value
		again := read(map[string]string{env.ConstantCapacities: shown})
		if len(again.Refusals) != 0 || again.CPUConstants.Value != s.CPUConstants.Value || again.GPUConstants.Value != s.GPUConstants.Value {
			t.Fatalf("%q is shown as %q, which reads as %+v", text, shown, again)
		}
	})
}

// C9: any text in any variable is taken and shown so that it reads back, or
// refused with the default kept; never both.
func FuzzRead(f *testing.F) {
	var names []string
	for _, r := range env.Table(read(nil)) {
		names = append(names, r.Name)
		names = append(names, r.Also...)
	}
	for i := range names {
		for _, seed := range []string{"", "7", "-5", "unlimited", "multiple:16", "auto"} {
			f.Add(uint8(i), seed)
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		name := names[int(which)%len(names)]
		s := read(map[string]string{name: text})
		if len(s.Refusals) > 0 {
			if s.Refusals[0].Name != name {
				t.Fatalf("%s=%q: refusal of %s", name, text, s.Refusals[0].Name)
			}
			if name == env.ConstantCapacities { // has values beside refusals
				return
			}
			if clean := read(nil); len(s.Refusals) != 1 || row(t, s, canonical(s)).Value != row(t, clean, canonical(s)).Value {
				t.Fatalf("%s=%q: %+v", name, text, s)
			}
			return
		}
		for _, r := range env.Table(s) {
			if r.Source != env.Environment {
				continue
			}
			again := read(map[string]string{name: r.Value})
			if len(again.Refusals) != 0 || row(t, again, name).Value != r.Value {
				t.Fatalf("%s=%q is shown as %q, which reads as %+v", name, text, r.Value, again)
			}
		}
	})
}

// canonical is the row that the one refusal of s belongs to: the old name of a
// variable has none of its own.
func canonical(s env.Settings) string {
	name := s.Refusals[0].Name
	for _, r := range env.Table(s) {
		for _, also := range r.Also {
			if also == name {
				return r.Name
			}
		}
	}
	return name
}
