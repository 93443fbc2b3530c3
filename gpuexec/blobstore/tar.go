package blobstore

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// sparse reports whether a header is that of a file with holes, which may claim any
// size. No store writes one. Sparse files of the older kind have their own type.
func sparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// Whole checks that r is an archive and has its end. The error is fault.ErrInvalid.
// Import would find the same error only after it has stored the entries before it.
// Whole does not verify entries.
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

// endMark is the number of zero bytes that end a tar file. It is more than a file's
// padding and half of the mark. archive/tar accepts a file without it.
const endMark = 1024

// trailer counts the zero bytes since the last byte that was not zero.
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
