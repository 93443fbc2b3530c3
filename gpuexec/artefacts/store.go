package artefacts

import (
	"context"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// Subject says what is looked for in a Store.
type Subject struct {
	Backend string
	Key     string // as the store knows it: without what belongs to the identity (SPEC P3)

	// Identity is that of the device that the blob is for, and what it must fit; nil =
	// what the store knows of the backend.
	Identity *gpuexec.Identity
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

	// Cost is what the blob took to build, which its artefact took to make as far as
	// eviction is concerned; 0 = not known: then as measured while it was loaded.
	Cost time.Duration

	// Claim is what the finder must bring to an end; nil = nothing. There is one
	// with every blob.
	Claim Claim
}

// Claim is the right and the duty that come with a Found: to say what the driver
// thought of the blob, and to build and save what was missing. It is ended by
// exactly one of Loaded, Save and Abandon. Calls of one claim never overlap.
type Claim interface {
	// Loaded says that the driver took the blob.
	Loaded()
	// Refused says that the driver did not take the blob, which must not be given
	// out again (SPEC P11). It answers like Find, with the same claim: with what
	// another process has built in its place, or to say that it is for us to build.
	Refused(ctx context.Context) Found
	// Save keeps what was built for the next process. requires is Built.Requires.
	Save(ctx context.Context, blob []byte, cost time.Duration, requires []string) error
	// Abandon says that nothing will be saved: another process may build.
	Abandon()
}
