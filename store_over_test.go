package kiln

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/tiers"
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
