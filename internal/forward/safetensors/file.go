package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// Error says what is wrong with a file. It matches fault.ErrInvalid, and the
// cause where there is one.
type Error struct {
	File   string
	Tensor string // empty where none is concerned
	Text   string // what is wrong and what would be right
	Cause  error  // of a file that cannot be read, else nil
}

func (e *Error) Error() string {
	if e.Tensor != "" {
		return fmt.Sprintf("safetensors: %s: tensor %q: %s", e.File, e.Tensor, e.Text)
	}
	return fmt.Sprintf("safetensors: %s: %s", e.File, e.Text)
}

// Unwrap gives fault.ErrInvalid and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{fault.ErrInvalid}
	}
	return []error{fault.ErrInvalid, e.Cause}
}

// Tensor is one entry of a file.
type Tensor struct {
	Type  string // as in the file, such as "F32"
	Shape []int
	begin int64 // in the file
	end   int64
}

// File is an open weight file. It is safe for concurrent use.
type File struct {
	name    string
	source  io.ReaderAt
	closer  io.Closer
	tensors map[string]Tensor
}

// Open opens and checks the file at path. The caller closes it.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(unreadable(path, err), f.Close())
	}
	if !info.Mode().IsRegular() {
		return nil, errors.Join(&Error{File: path, Text: "not a regular file; name a safetensors file"}, f.Close())
	}
	file, err := Read(path, f, info.Size())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file.closer = f
	return file, nil
}

func unreadable(path string, err error) error {
	var inner *os.PathError
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &Error{File: path, Text: fmt.Sprintf("%v; name a readable safetensors file", err), Cause: err}
}

// Read checks a file of this many bytes. Name is what errors call it; source is
// read until the last use of the File.
func Read(name string, source io.ReaderAt, size int64) (*File, error) {
	tensors, err := readHeader(name, source, size)
	if err != nil {
		return nil, err
	}
	return &File{name: name, source: source, tensors: tensors}, nil
}

// Close closes the file. Reads after it fail. Close of a File that Read made
// does nothing.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Names lists the tensors in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.tensors)) }

// Tensor describes a tensor; ok is false when the file has none of the name.
func (f *File) Tensor(name string) (t Tensor, ok bool) {
	t, ok = f.tensors[name]
	t.Shape = slices.Clone(t.Shape)
	return t, ok
}

// Float32 reads a tensor. It matches fault.ErrNotFound when the file has none
// of the name and fault.ErrInvalid when it is not of type F32.
func (f *File) Float32(name string) ([]float32, error) {
	t, ok := f.tensors[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: %s: tensor %q: %w", f.name, name, fault.ErrNotFound)
	}
	if t.Type != "F32" {
		return nil, &Error{File: f.name, Tensor: name, Text: fmt.Sprintf("is of type %s; only F32 can be used", t.Type)}
	}
	out := make([]float32, (t.end-t.begin)/4)
	var buffer [1 << 15]byte
	for done := 0; done < len(out); {
		n := min(len(buffer)/4, len(out)-done)
		if _, err := f.source.ReadAt(buffer[:4*n], t.begin+int64(4*done)); err != nil {
			return nil, &Error{File: f.name, Tensor: name, Text: fmt.Sprintf("%v; was the file changed while it was open?", err), Cause: err}
		}
		for i := range n {
			out[done+i] = math.Float32frombits(binary.LittleEndian.Uint32(buffer[4*i:]))
		}
		done += n
	}
	return out, nil
}
