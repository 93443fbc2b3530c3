package kiln

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
	"github.com/kiln-cache/kiln/internal/self"
)

// P5, F8: a store whose memory tier cannot be had does not stay open behind the
// runtime that goes on without it.
func TestStoreWithoutItsMemory(t *testing.T) {
	store, err := blobstore.Open(t.Context(), blobstore.Config{Dir: t.TempDir() + "/store"})
	if err != nil {
		t.Fatal(err)
	}
	none := errors.New("of the test")
	p, err := over(store, func() (*tiers.Tiers, error) { return nil, none })
	if !errors.Is(err, none) || p != (persistence{}) {
		t.Errorf("%v, %v", p, err)
	}
	if err := store.Put(context.Background(), "b", "k", []byte("v"), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("it stays open: %v", err)
	}
}

// P13, P5: a program that has more rights than its user, who writes its environment, takes code
// from no folder that this names. It goes on without a store, unless it must have one.
func TestRaisedProgramTakesNoStoreOfTheEnvironments(t *testing.T) {
	defer func() { raised = self.Raised }()
	dir := filepath.Join(t.TempDir(), "store")
	for name, c := range map[string]struct {
		cfg   Config
		names string // the variable that is set
		has   bool   // a store, also in a raised program
	}{
		"the environment's":        {Config{}, "KILN_STORE_DIR", false},
		"its own":                  {Config{StoreDir: dir}, "", true},
		"its own, asked for twice": {Config{StoreDir: dir}, "KILN_STORE_DIR", true},
		"below the environment's":  {Config{StoreDir: dir}, "KILN_STORE_BASES", false},
		"below its own":            {Config{StoreDir: dir, Store: blobstore.Config{Bases: []string{}}}, "KILN_STORE_BASES", true},
	} {
		for _, more := range []bool{false, true} {
			raised = func() bool { return more }
			c.cfg.Lookup = func(asked string) (string, bool) { return dir, asked == c.names }
			for _, required := range []bool{false, true} {
				c.cfg.StoreRequired = required
				r, err := Open(c.cfg)
				if refused := more && !c.has; required && errors.Is(err, ErrRefused) != refused || (!required || !refused) && err != nil {
					t.Errorf("%s, raised %t, required %t: %v", name, more, required, err)
				}
				if r == nil {
					continue
				}
				if has := r.persisted.store != nil; has != (c.has || !more) {
					t.Errorf("%s, raised %t: it has a store: %t", name, more, has)
				}
				if err := r.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
