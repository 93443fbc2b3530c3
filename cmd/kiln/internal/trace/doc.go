// Package trace reads recorded request traces: CSV files with a header, plain or
// compressed by gzip. A byte order mark before the header is passed over.
//
// Two kinds of table are known. Requests in arrival order have the columns t_ms
// (milliseconds from the first row), len (input tokens), out (generated tokens,
// may be empty) and session (may be empty). Batches have start_ms, batch
// (requests in it) and max_len (tokens of the longest). Columns may come in any
// order and others are passed over; only the lengths must be there.
//
// A Key turns the rows of a table into the stream of shapes that they ask for.
//
// Functions are safe for concurrent use. Unreadable input is a *Error naming the
// file and the line; it unwraps to fault.ErrInvalid, a file that cannot be
// opened or read to its own cause.
package trace
