package flight

// Stop has a room answer its callers with ErrClosed, and admit nobody any more. It frees
// nothing, waits for nothing and does not close the room: whoever closes rooms one after the
// other has all of them stop first (SPEC F8).
type Stop func()
