package sessioncache

import "github.com/kiln-cache/kiln/fault"

const room = "sessioncache: "

// failed wraps err, unless it is nil, with what was done to which key.
func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &fault.Error{Op: room + op, Key: key, Err: err}
}
