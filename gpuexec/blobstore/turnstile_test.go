package blobstore

import (
	"context"
	"errors"
	"testing"
)

// silent is a context that has ended and does not say why.
type silent struct{ context.Context }

func (silent) Err() error { return nil }

// F4: who leaves the turnstile has not passed it, whatever its context says.
func TestTurnstileWithASilentContext(t *testing.T) {
	ended, end := context.WithCancel(context.Background())
	end()
	full := make(turnstile, 1)
	full <- struct{}{}
	if err := full.lock(silent{ended}); !errors.Is(err, context.Canceled) {
		t.Errorf("passed a turnstile that another holds: %v", err)
	}
}
