package blobstore

import (
	"context"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// SetFS makes a store open its folders with open; nil = the machine's.
func SetFS(c *Config, open func(root string) vfs.FS) { c.fs = open }

// Token is the number of a claim: it grows with every claim of the key. 0 = the
// host could not be asked.
func (c *Claim) Token() int {
	if c.lease == nil {
		return 0
	}
	return c.lease.Token()
}

// HoldLong has changes of this test go on however slow the machine is.
func HoldLong(t testing.TB) {
	before := mostHeld
	mostHeld = time.Hour
	t.Cleanup(func() { mostHeld = before })
}

// Count is how often a reason arose.
func (s *Store) Count(r fault.Reason) int64 { return s.Stats().Reasons[r] }

// JournalEnd ends a change of the journal that has no lines.
var JournalEnd = journalEnd(nil, totals{})

// Sealed ends a text with its digest.
var Sealed = sealed

// SaveIndex writes the snapshot of the index now.
func (s *Store) SaveIndex() {
	_ = s.dir.mu.lock(context.Background())
	defer s.dir.mu.unlock()
	s.dir.save()
}

// LongestPause is for how long a store that could not write does not try.
const LongestPause = longestPause

// Builders is how many places somebody has the claim of, or waits for.
func Builders() int {
	builders.Lock()
	defer builders.Unlock()
	return len(builders.at)
}

// FlushUses writes the uses of this opening now.
func (s *Store) FlushUses() { s.flushUses(false) }
