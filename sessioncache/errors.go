package sessioncache

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

const room = "sessioncache: "

// What was closed, and what to do.
var (
	errClosed = fmt.Errorf("the session is %w: open another one", fault.ErrClosed)
	errGroup  = fmt.Errorf("the group is %w: ask its session for another one", fault.ErrClosed)
)

// failed wraps err, unless it is nil, with what was done to which key.
func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if err == fault.ErrClosed { // of the actor, which is the session's
		err = errClosed
	}
	return &fault.Error{Op: room + op, Key: key, Err: err}
}
