package blobstore

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// sparse reports whether a header has the records of a file with holes, which may
// claim any size. A store writes none. The older kind has a type of its own.
func sparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// Whole reports, as ErrInvalid, that r is no archive or a part of one, which an
// Import would say only after what comes before. It looks into no entry.
func Whole(r io.Reader) error {
	in := newArchive(r)
	for {
		switch _, err := in.next("store: archive"); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// archive reads a tar file up to the mark at its end.
type archive struct {
	end trailer
	tar *tar.Reader
}

func newArchive(r io.Reader) *archive {
	a := &archive{end: trailer{r: r}}
	a.tar = tar.NewReader(&a.end)
	return a
}

// next gives the next file's header; io.EOF behind the last.
func (a *archive) next(op string) (*tar.Header, error) {
	a.end.zeros = 0
	h, err := a.tar.Next()
	if err == io.EOF && a.end.zeros < endMark {
		err = io.ErrUnexpectedEOF
	}
	if err != nil && err != io.EOF {
		err = broken(op, err)
	}
	return h, err
}

func broken(op string, err error) error {
	return &fault.Error{Op: op, Err: fmt.Errorf("%w: no archive, or not all of one: %w: export it again", fault.ErrInvalid, err)}
}

// endMark is what ends a tar file, in zero bytes; more than the filling behind a
// file and one block of the mark. The library's reader takes an end without it.
const endMark = 1024

// trailer counts the zero bytes that it has read since the last other byte.
type trailer struct {
	r     io.Reader
	zeros int
}

func (t *trailer) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.zeros += n
	if last := bytes.TrimRight(p[:n], "\x00"); len(last) > 0 {
		t.zeros = n - len(last)
	}
	return n, err
}
