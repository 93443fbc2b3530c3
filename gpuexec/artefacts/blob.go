package artefacts

import (
	"context"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

// Blob gives the artefact of a key as bytes. It waits for one that is being
// made, and creates nothing: ErrNotFound if there is none, ErrUnsupported if its
// backend cannot give blobs (SPEC B2).
func (c *Cache) Blob(ctx context.Context, key string) ([]byte, error) {
	const op = "artefacts: blob"
	l, _, err := c.Peek(ctx, key)
	if err != nil {
		return nil, err
	}
	if l == nil {
		return nil, &fault.Error{Op: op, Key: key, Err: fault.ErrNotFound}
	}
	defer l.End()
	n := l.Ref().n
	if n.Value.blob == nil {
		return nil, &fault.Error{Op: op, Key: key, Err: fault.ErrUnsupported}
	}
	blob, err := blobOf(ctx, n)
	if err != nil {
		return nil, &fault.Error{Op: op, Key: key, Err: err}
	}
	return blob, nil
}

// FromBlob is Get with a blob in place of a creator: a resident artefact of the
// key wins over it, a flight under way is joined. An empty blob is ErrInvalid
// before anything else is looked at, a Request without Load ErrUnsupported, a
// blob that the driver does not take ErrRefused with its reason; the caller then
// decides whether to build (SPEC B2, B3). An error of the device that does not blame
// the blob is passed on. Neither store nor Create is asked. As
// Get, it makes an artefact of a key that is Unhashable for this call alone.
func (c *Cache) FromBlob(ctx context.Context, r Request, blob []byte) (*Lease, Outcome, error) {
	const op = "artefacts: create from blob"
	if len(blob) == 0 {
		return nil, Outcome{}, fault.Invalidf(op, "the blob is empty: want what Blob gave")
	}
	if err := r.check(op); err != nil {
		return nil, Outcome{}, err
	}
	if r.Load == nil {
		return nil, Outcome{}, &fault.Error{Op: op, Key: r.Key, Backend: r.Backend, Err: fault.ErrUnsupported}
	}
	if r.Unhashable != "" {
		return c.await(ctx, op, &call{Request: r, kind: lone, given: slices.Clone(blob)})
	}
	if l, o, ok := c.hit(ctx, &r); ok {
		return l, o, nil
	}
	return c.await(ctx, op, &call{Request: r, kind: normal, given: slices.Clone(blob)}) // Load may be at it when the caller has left
}

// blobOf calls the artefact's own Blob, which is user code. n must be pinned.
func blobOf(ctx context.Context, n *node) (blob []byte, err error) {
	err = guard.Guarded(func() (err error) {
		blob, err = n.Value.blob(ctx)
		return err
	})
	return blob, err
}
