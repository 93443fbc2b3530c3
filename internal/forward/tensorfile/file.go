package tensorfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
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
		return fmt.Sprintf("tensorfile: %s: tensor %.100q: %.1000s", e.File, e.Tensor, e.Text)
	}
	return fmt.Sprintf("tensorfile: %s: %.1000s", e.File, e.Text)
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
	Type   string // as in the file, such as "F32"
	Shape  []int
	Turned bool  // a kernel as [inputs, outputs]; others are [outputs, inputs], as PyTorch has them
	in     *File // that has the numbers; nil: the file itself
	begin  int64 // in it
	end    int64
}

// File is an open weight file. It is safe for concurrent use.
type File struct {
	name    string
	tensors map[string]Tensor
	nodes   []Node       // of an ONNX model
	others  []*File      // with numbers of the tensors
	mu      sync.RWMutex // held for reading while the bytes are in use
	bytes   []byte       // of the whole file; nil once closed
	mapped  *os.File     // nil: bytes is a copy
	opened  os.FileInfo  // of mapped
	stamp   string
}

// Open opens and checks the safetensors file at path, mapped where the system can. The
// caller closes it.
func Open(path string) (*File, error) { return OpenAt(path, time.Now()) }

// OpenAt is Open at another time. A file that was written just before it has no stamp:
// it might be written once more before its file system's clock goes on.
func OpenAt(path string, now time.Time) (*File, error) {
	f, err := os.OpenFile(path, toRead, 0)
	if err != nil {
		return nil, unreadable(path, err)
	}
	return openOn(f, path, now, func(file *File) (err error) {
		file.tensors, err = readHeader(path, file.bytes)
		return err
	})
}

// openOn opens what parse reads from f, which it takes.
func openOn(f *os.File, path string, now time.Time, parse func(*File) error) (*File, error) {
	file := &File{name: path}
	err := file.open(f, now, parse)
	if file.mapped == nil {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// open has parse read the bytes, and keeps from if it maps it.
func (f *File) open(from *os.File, now time.Time, parse func(*File) error) (err error) {
	if f.opened, err = from.Stat(); err != nil {
		return unreadable(f.name, err)
	}
	size := f.opened.Size()
	if !f.opened.Mode().IsRegular() {
		return &Error{File: f.name, Text: "not a regular file; name a file of weights"}
	}
	if size != int64(int(size)) {
		return &Error{File: f.name, Text: fmt.Sprintf("%d bytes, more than this system can address", size)}
	}
	bytes, mapped, err := content(from, int(size))
	if err != nil {
		return unreadable(f.name, err)
	}
	if f.bytes = bytes; mapped {
		const coarsest = 2 * time.Second // of the clocks of file systems
		f.mapped, f.stamp = from, stampBefore(now.Add(-coarsest), from)
	}
	return f.guard("", func() error {
		if strings.HasPrefix(string(f.bytes[:min(len(f.bytes), 32)]), "version https://git-lfs.") {
			return &Error{File: f.name, Text: "is a pointer of Git LFS and not the file: fetch that with git lfs pull"}
		}
		return parse(f)
	})
}

func unreadable(path string, err error) error {
	var inner *os.PathError
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &Error{File: path, Text: fmt.Sprintf("%v; name a readable file of weights", err), Cause: err}
}

// Read checks a safetensors file that is in memory, which nobody may change. Name is what errors
// call it.
func Read(name string, content []byte) (*File, error) {
	tensors, err := readHeader(name, content)
	if err != nil {
		return nil, err
	}
	return &File{name: name, bytes: content, tensors: tensors}, nil
}

// Close closes the file, once nobody uses its bytes. Reads after it fail.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, other := range f.others {
		errs = append(errs, other.Close())
	}
	bytes := f.bytes
	f.bytes = nil
	if f.mapped != nil && bytes != nil {
		errs = append(errs, unmap(bytes), f.mapped.Close())
	}
	return errors.Join(errs...)
}

// Names lists the tensors in alphabetical order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.tensors)) }

// Tensor describes a tensor; ok is false when the file has none of the name.
func (f *File) Tensor(name string) (t Tensor, ok bool) {
	t, ok = f.tensors[name]
	t.Shape = slices.Clone(t.Shape)
	return t, ok
}

// Stamp says which state of which file is open, by what the system keeps of it: files of
// one stamp have the same bytes. It is empty where the system keeps nothing that is enough.
func (f *File) Stamp() string { return f.stamp }

// sample is how many bytes of both ends of a piece State looks at.
const sample = 4 << 10

// State is a text that two tensors of files with a stamp share only if they have the same bytes:
// the stamp, the name, and a digest over a sample of the bytes, since files on two devices may
// have one stamp. A device has no name that stays: in containers it changes with each mount. It
// is empty where there is no stamp. Errors are those of Bytes, and ctx's.
func (f *File) State(ctx context.Context, name string) (string, error) {
	if f.stamp == "" {
		return "", nil
	}
	sum := sha256.New()
	err := f.Pieces(name, func(bytes []byte) error {
		sum.Write(bytes[:min(sample, len(bytes))]) // gives no error
		sum.Write(bytes[max(0, len(bytes)-sample):])
		return ctx.Err()
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%q of %s sample %x", name, f.stamp, sum.Sum(nil)), nil
}

// Bytes calls use with a tensor's bytes, as the file has them. They must not be
// changed, and are valid until use returns: then their memory goes back to the system,
// which reads them again at the next use. It matches fault.ErrNotFound when the file
// has no such tensor, fault.ErrClosed after Close, and fault.ErrInvalid when somebody
// wrote into the file since it was opened: what use was given is worth nothing then. Else
// it gives the error of use. A file that another one replaced stays as it was.
func (f *File) Bytes(name string, use func(bytes []byte) error) error {
	return f.pieces(name, math.MaxInt64, use)
}

// pieceBytes is the length of a piece: a multiple of every number's, and little beside
// what a process holds.
const pieceBytes = 2 << 20

// Pieces is Bytes in pieces of a tensor, one after the other: no more of the file is in
// memory at a time.
func (f *File) Pieces(name string, use func(bytes []byte) error) error {
	return f.pieces(name, pieceBytes, use)
}

func (f *File) pieces(name string, most int64, use func(bytes []byte) error) error {
	t, ok := f.tensors[name]
	if !ok {
		return fmt.Errorf("tensorfile: %s: tensor %q: %w", f.name, name, fault.ErrNotFound)
	}
	if t.in != nil {
		f = t.in
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.bytes == nil {
		return fmt.Errorf("tensorfile: %s: %w", f.name, fault.ErrClosed)
	}
	for begin, end := t.begin, t.begin; end < t.end; begin = end {
		end = begin + min(most, t.end-begin)
		if f.mapped == nil {
			if err := use(f.bytes[begin:end]); err != nil {
				return err
			}
			continue
		}
		err := f.guard(name, func() error { return use(f.bytes[begin:end]) })
		discard(f.bytes, begin, end)
		if err != nil {
			return err
		}
	}
	if f.mapped == nil {
		return nil
	}
	now, err := f.mapped.Stat()
	if err != nil || now.Size() != f.opened.Size() || !now.ModTime().Equal(f.opened.ModTime()) {
		return &Error{File: f.name, Tensor: name, Text: "was changed while it was open: open it again", Cause: err}
	}
	return nil
}

// Floats is Bytes with the numbers of a tensor of type F32, F16 or BF16, row major.
// Another type matches fault.ErrInvalid.
func (f *File) Floats(name string, use func(values []float32) error) error {
	return f.Bytes(name, f.numbers(name, use))
}

// FloatPieces is Floats in pieces.
func (f *File) FloatPieces(name string, use func(values []float32) error) error {
	return f.Pieces(name, f.numbers(name, use))
}

func (f *File) numbers(name string, use func(values []float32) error) func([]byte) error {
	kind := f.tensors[name].Type
	return func(bytes []byte) error {
		values, ok := floats(kind, bytes)
		if !ok {
			return &Error{File: f.name, Tensor: name, Text: fmt.Sprintf("is of type %s; only F32, F16 and BF16 can be used", kind)}
		}
		return use(values)
	}
}

// guard runs what reads the mapped file: where a page of it is gone, that is an error.
func (f *File) guard(name string, use func() error) error {
	if f.mapped == nil {
		return use()
	}
	gone, err := guard.Reading(f.bytes, use)
	if gone {
		return &Error{File: f.name, Tensor: name, Text: "cannot be read any more; was the file changed while it was open?"}
	}
	return err
}
