package kiln_test

import (
	"log/slog"
	"testing"

	"github.com/kiln-cache/kiln"
)

// Q1: a floor where nothing is shared is warned of, with what to set; one that protects
// from something is not.
func TestFloorWithoutABound(t *testing.T) {
	for what, cfg := range map[string]kiln.Config{
		"nothing": {}, "sessions": {SessionBytes: kiln.LimitOf(100)}, "artefacts": {ArtefactBytes: kiln.LimitOf(100)}, "memory": {MemoryLimit: "1024"},
	} {
		log := new(lines)
		cfg.Logger, cfg.Lookup = slog.New(slog.NewTextHandler(log, nil)), environment(nil)
		r := open(t, cfg)
		if _, err := r.Session(kiln.SessionConfig{Name: "s", Floor: kiln.Floor{Bytes: 10}}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		session(t, r)
		if n := log.count("set SessionBytes"); (n == 1) != (what == "nothing") || n > 1 {
			t.Errorf("%s: warned of %d times", what, n)
		}
	}
}

// Q1, Q4: an error of a floor says that it is one, and which bound it is above.
func TestErrorsOfFloorsNameTheBound(t *testing.T) {
	of := func(cfg kiln.Config) func(int64) error {
		r := open(t, cfg)
		return func(floor int64) error {
			s, err := r.Session(kiln.SessionConfig{Name: "s", Floor: kiln.Floor{Bytes: floor}})
			if err == nil {
				err = s.SetBytes(ctx, kiln.LimitOf(10))
			}
			return err
		}
	}
	shared, artefacts := of(kiln.Config{SessionBytes: kiln.LimitOf(100)}), of(kiln.Config{ArtefactBytes: kiln.LimitOf(100)})
	says(t, "the floor has 60 bytes", shared(60), artefacts(60))
	says(t, "Config.SessionBytes", shared(60))
	says(t, "Config.ArtefactBytes", artefacts(60))
}

// G12: an interned name of another session finds this one's value of that name, or nothing.
func TestInternedNameOfAnotherSession(t *testing.T) {
	r := open(t, kiln.Config{})
	one, other := session(t, r), session(t, r)
	other.Intern("first") // so that ids of one name differ
	id, foreign := one.Intern("n"), other.Intern("n")
	g := group(t, one, 1)
	defer g.Close()
	if _, ok := kiln.LookupID[int](g, foreign); ok {
		t.Error("found, where nothing is")
	}
	must(kiln.Get(ctx, g, "n", of("k", 7)))
	must(kiln.Get(ctx, g, "first", of("l", 8)))
	for _, id := range []kiln.NameID{id, foreign} {
		if v, ok := kiln.LookupID[int](g, id); !ok || v != 7 {
			t.Errorf("%d, %v", v, ok)
		}
	}
}
