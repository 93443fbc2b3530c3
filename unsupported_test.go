//go:build !unix

package kiln_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/fault"
)

// A runtime opens without a store where the system has none: it is asked for one
// and goes on without, unless one is required.
func TestStoreUnsupported(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	named := func(name string) (string, bool) { return dir, name == "KILN_STORE_DIR" }
	for _, lookup := range []func(string) (string, bool){nil, named} {
		r, err := kiln.Open(kiln.Config{Lookup: lookup})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := kiln.Open(kiln.Config{Lookup: named, StoreRequired: true}); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("required: %v, want ErrUnsupported", err)
	}
}
