package trace

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/kiln-cache/kiln/fault"
)

// Unknown stands for an absent or empty Out or Session.
const Unknown = -1

// Limits of what is read; all far above the traces there are.
const (
	maxRows   = 1 << 26
	maxRow    = 1 << 16   // bytes
	maxCount  = 1<<31 - 1 // requests or tokens
	maxNumber = 1 << 48   // milliseconds, or a name
)

// Request is one row of a request table.
type Request struct {
	Millis  int64 // arrival after the first row; 0 where the file has no times
	Len     int64 // input tokens
	Out     int64 // generated tokens, or Unknown
	Session int64 // client, user or conversation, or Unknown
}

// Batch is one row of a batch table.
type Batch struct {
	Millis int64 // start after the first row; 0 where the file has no times
	Size   int64 // requests
	MaxLen int64 // tokens of the longest request
}

// Error says where a trace is not as it should be.
type Error struct {
	File string
	Line int // from 1, the header; 0 where no line is concerned
	Err  error
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("trace: %s: %v", e.File, e.Err)
	}
	return fmt.Sprintf("trace: %s:%d: %v", e.File, e.Line, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Requests reads the request table in a file.
func Requests(file string) ([]Request, error) {
	return open(file, func(r io.Reader) ([]Request, error) { return ReadRequests(file, r) })
}

// Batches reads the batch table in a file.
func Batches(file string) ([]Batch, error) {
	return open(file, func(r io.Reader) ([]Batch, error) { return ReadBatches(file, r) })
}

// ReadRequests reads a request table; name stands for the file in errors.
func ReadRequests(name string, r io.Reader) ([]Request, error) {
	columns := []column{{name: "len", needed: true}, {name: "t_ms", most: maxNumber}, {name: "out", empty: true}, {name: "session", empty: true, most: maxNumber}}
	return read(name, r, columns, func(v []int64) Request {
		return Request{Len: v[0], Millis: max(v[1], 0), Out: v[2], Session: v[3]}
	})
}

// ReadBatches reads a batch table; name stands for the file in errors.
func ReadBatches(name string, r io.Reader) ([]Batch, error) {
	columns := []column{{name: "batch", needed: true}, {name: "max_len", needed: true}, {name: "start_ms", most: maxNumber}}
	return read(name, r, columns, func(v []int64) Batch {
		return Batch{Size: v[0], MaxLen: v[1], Millis: max(v[2], 0)}
	})
}

func open[T any](file string, read func(io.Reader) ([]T, error)) ([]T, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, &Error{File: file, Err: err}
	}
	defer f.Close()
	return read(f)
}

// column is one that a table may have.
type column struct {
	name   string
	needed bool   // the table is no such table without it
	empty  bool   // a row may have nothing there
	most   uint64 // 0 = maxCount
	at     int    // field of a row, -1 if the table does not have it
}

// read reads a table row by row; row gets a value for each column, Unknown where
// there is none.
func read[T any](name string, r io.Reader, columns []column, row func([]int64) T) ([]T, error) {
	fail := func(line int, format string, args ...any) error {
		return &Error{name, line, fmt.Errorf("%w: "+format, append([]any{fault.ErrInvalid}, args...)...)}
	}
	plain, err := inflate(r)
	if err != nil {
		return nil, fail(0, "gzip: %v", err)
	}
	source := &meter{plain, maxRow}
	table := csv.NewReader(source)
	table.ReuseRecord = true
	header, err := table.Read()
	if err != nil {
		return nil, readError(name, fail, 0, err)
	}
	for i := range columns {
		columns[i].at = -1
		for k, title := range header {
			if title != columns[i].name {
				continue
			}
			if columns[i].at >= 0 {
				return nil, fail(1, "two columns %q", title)
			}
			columns[i].at = k
		}
		if columns[i].needed && columns[i].at < 0 {
			return nil, fail(1, "no column %q in the header", columns[i].name)
		}
	}
	var rows []T
	values := make([]int64, len(columns))
	for line := 1; ; {
		source.left = maxRow
		fields, err := table.Read()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, readError(name, fail, line, err)
		}
		line, _ = table.FieldPos(0)
		if len(rows) == maxRows {
			return nil, fail(line, "more than %d rows", maxRows)
		}
		for i, c := range columns {
			values[i] = Unknown
			if c.at < 0 || c.empty && fields[c.at] == "" {
				continue
			}
			most := cmp.Or(c.most, maxCount)
			n, err := strconv.ParseUint(fields[c.at], 10, 64)
			if err != nil || n > most {
				return nil, fail(line, "%s is %.32q, want a whole number of 0 to %d", c.name, fields[c.at], most)
			}
			values[i] = int64(n)
		}
		rows = append(rows, row(values))
	}
}

// readError says where a table could not be read further than line.
func readError(name string, fail func(int, string, ...any) error, line int, err error) error {
	if bad, ok := errors.AsType[*csv.ParseError](err); ok {
		return fail(bad.Line, "%v", bad.Err)
	}
	if err == errLongRow {
		return fail(line+1, "%v", err)
	}
	if err == io.EOF {
		return fail(0, "empty, want a header line")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) {
		return fail(0, "damaged or cut short: %v", err)
	}
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return &Error{File: name, Err: err}
	}
	return fail(0, "%v", err)
}

// meter lets this number of bytes through and then fails: a row without an end, as
// in a binary file or after a lone quote, would be read into memory whole.
type meter struct {
	r    io.Reader
	left int
}

func (m *meter) Read(p []byte) (int, error) {
	if m.left == 0 {
		return 0, errLongRow
	}
	n, err := m.r.Read(p[:min(len(p), m.left)])
	m.left -= n
	return n, err
}

var errLongRow = fmt.Errorf("a row of more than %d bytes", maxRow)

// byteOrderMark is how spreadsheets begin a CSV file in UTF-8.
const byteOrderMark = "\ufeff"

// inflate gives the plain text, without a byte order mark. It looks at the first
// bytes, not at the name, to tell whether a file is compressed.
func inflate(r io.Reader) (io.Reader, error) {
	b := bufio.NewReader(r)
	if begins(b, "\x1f\x8b") {
		z, err := gzip.NewReader(b)
		if err != nil {
			return nil, err
		}
		b = bufio.NewReader(z)
	}
	if begins(b, byteOrderMark) {
		_, _ = b.Discard(len(byteOrderMark)) // it is in the buffer
	}
	return b, nil
}

// begins reports whether the text begins with this. The next read returns any error.
func begins(b *bufio.Reader, with string) bool {
	head, _ := b.Peek(len(with))
	return string(head) == with
}
