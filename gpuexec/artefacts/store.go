package artefacts

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/internal/fault"
)

// Subject says what is looked for in a Store.
type Subject struct {
	Backend string
	Key     string // as the store knows it: without what belongs to the identity (SPEC P3)
}

// Store is what lies below memory: verified blobs in memory, on disk and in the
// fleet, in this order (SPEC P6). Its methods may block and run on goroutines
// of their own; they must be safe for concurrent use.
type Store interface {
	// Find looks for the blob of a subject. It may wait for another process that
	// builds it, within ctx. Trouble is a miss with a reason, never more.
	Find(ctx context.Context, s Subject) Found
}

// Found is a store's answer.
type Found struct {
	Blob   []byte       // verified, to be read only; meaningless beside a Reason
	Reason fault.Reason // why there is no blob; empty where there is one
	Field  string       // what the reason concerns

	// Claim is what the finder must bring to an end; nil = nothing.
	Claim Claim
}

// Claim is the right and the duty that come with a Found: to say what the driver
// thought of the blob, and to build and save what was missing. It is ended by
// exactly one of Loaded(nil), Save and Abandon; Loaded with an error comes
// before one of the latter two. Calls of one claim never overlap.
type Claim interface {
	// Loaded reports the driver's verdict on the blob: nil, or its refusal, after
	// which the blob must not be given out again (SPEC P11).
	Loaded(err error)
	// Save keeps what was built for the next process.
	Save(ctx context.Context, blob []byte, cost time.Duration) error
	// Abandon says that nothing will be saved: another process may build.
	Abandon()
}
