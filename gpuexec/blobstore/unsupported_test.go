//go:build !unix

package blobstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/limit"
)

// A system whose files have no owner has no store; without a directory the store
// is open and off, as everywhere.
func TestUnsupported(t *testing.T) {
	ctx := context.Background()
	cfg := blobstore.Config{Dir: t.TempDir(), Capacity: limit.Of(1 << 20)}
	if _, err := blobstore.Open(ctx, cfg); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("open: %v, want ErrUnsupported", err)
	}
	cfg.Dir = ""
	s, err := blobstore.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, miss, err := s.Get(ctx, "cpu", "k"); miss.Reason != fault.Disabled || err != nil {
		t.Errorf("get: %v, %v, want disabled", miss.Reason, err)
	}
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
}
