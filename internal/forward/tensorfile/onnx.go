package tensorfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	maxNodes = 1 << 16
	maxFiles = 1 << 10 // with numbers of one model
	maxText  = 1 << 10 // bytes of a name
)

// onnxTypes are the types of elements that a safetensors file may have too.
var onnxTypes = map[uint64]string{1: "F32", 2: "U8", 3: "I8", 4: "U16", 5: "I16", 6: "I32", 7: "I64", 9: "BOOL", 10: "F16", 11: "F64", 12: "U32", 13: "U64", 16: "BF16"}

// OpenONNX opens the ONNX model at path, whose tensors are its initialisers, mapped where
// the system can; so are the files with their numbers, which stand in the model's folder or
// below it. The caller closes it.
func OpenONNX(path string) (*File, error) { return OpenONNXAt(path, time.Now()) }

// OpenONNXAt is OpenONNX at another time, as OpenAt.
func OpenONNXAt(path string, now time.Time) (*File, error) {
	f, err := os.OpenFile(path, toRead, 0)
	if err != nil {
		return nil, unreadable(path, err)
	}
	dir := filepath.Dir(path)
	file, err := openOn(f, path, now, func(file *File) error {
		return file.readONNX(func(name string) (*File, error) {
			root, err := os.OpenRoot(dir)
			if err != nil {
				return nil, unreadable(dir, err)
			}
			defer root.Close()
			f, err := root.OpenFile(name, toRead, 0)
			if err != nil {
				return nil, unreadable(filepath.Join(dir, name), err)
			}
			return openOn(f, filepath.Join(dir, name), now, func(*File) error { return nil })
		})
	})
	if err != nil {
		return nil, err
	}
	stamps := []string{file.stamp}
	for _, other := range file.others {
		stamps = append(stamps, other.stamp)
	}
	if file.stamp = strings.Join(stamps, " and "); slices.Contains(stamps, "") {
		file.stamp = ""
	}
	return file, nil
}

// ReadONNX is OpenONNX of a model that is in memory, which nobody may change. It has no
// other files.
func ReadONNX(name string, content []byte) (*File, error) {
	f := &File{name: name, bytes: content}
	err := f.readONNX(func(other string) (*File, error) {
		return nil, &Error{File: other, Text: "is not in memory"}
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Nodes are those of an ONNX model, in their order.
func (f *File) Nodes() []Node { return slices.Clone(f.nodes) }

// onnx reads a model.
type onnx struct {
	*File
	open   func(name string) (*File, error)
	opened map[string]*File
}

func (f *File) readONNX(open func(name string) (*File, error)) error {
	f.tensors = map[string]Tensor{}
	o := onnx{File: f, open: open, opened: map[string]*File{}}
	var graphs []field
	versions := 0
	err := fields(0, f.bytes, func(x field) error {
		switch {
		case x.is(7, protowire.BytesType):
			graphs = append(graphs, x)
		case x.is(8, protowire.BytesType):
			versions++
			return fields(x.at, x.bytes, func(field) error { return nil })
		}
		return nil
	})
	switch {
	case err != nil:
	case len(graphs) != 1 || versions == 0: // a file that was cut between two fields is protobuf, too
		err = fmt.Errorf("%d graphs and %d versions of operations, want one graph with them: not an ONNX model, or cut off", len(graphs), versions)
	default:
		err = fields(graphs[0].at, graphs[0].bytes, o.graph)
	}
	if err == nil {
		err = o.name()
	}
	if typed := (*Error)(nil); err != nil && !errors.As(err, &typed) {
		return &Error{File: f.name, Text: err.Error()}
	}
	return err
}

// field is one of a message in protobuf's encoding.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  uint64 // of a Varint or a Fixed32
	bytes  []byte // of Bytes
	at     int64  // where they begin in the file
}

func (x field) is(number protowire.Number, kind protowire.Type) bool {
	return x.number == number && x.kind == kind
}

// text is a field that is a name.
func (x field) text() (string, error) {
	if len(x.bytes) > maxText {
		return "", fmt.Errorf("a name of %d bytes, want at most %d", len(x.bytes), maxText)
	}
	return string(x.bytes), nil
}

// fields calls each for the fields of a message that begins at this place of the file.
func fields(at int64, message []byte, each func(field) error) error {
	end := at + int64(len(message))
	for len(message) > 0 {
		var x field
		n := 0
		if x.number, x.kind, n = protowire.ConsumeTag(message); n >= 0 {
			message = message[n:]
			switch x.kind {
			case protowire.BytesType:
				x.bytes, n = protowire.ConsumeBytes(message)
			case protowire.VarintType:
				x.value, n = protowire.ConsumeVarint(message)
			case protowire.Fixed32Type:
				var v uint32
				v, n = protowire.ConsumeFixed32(message)
				x.value = uint64(v)
			default:
				n = protowire.ConsumeFieldValue(x.number, x.kind, message)
			}
		}
		if n < 0 {
			return fmt.Errorf("byte %d begins no field of protobuf that ends before byte %d: not an ONNX model, or cut off", end-int64(len(message)), end)
		}
		message = message[n:]
		x.at = end - int64(len(message)+len(x.bytes))
		if err := each(x); err != nil {
			return err
		}
	}
	return nil
}

func (o *onnx) graph(x field) error {
	switch {
	case x.is(1, protowire.BytesType):
		if len(o.nodes) == maxNodes {
			return fmt.Errorf("more than %d nodes", maxNodes)
		}
		n, err := readNode(x)
		o.nodes = append(o.nodes, n)
		return err
	case x.is(5, protowire.BytesType):
		if len(o.tensors) == maxTensors {
			return fmt.Errorf("more than %d initialisers", maxTensors)
		}
		return o.initialiser(x)
	}
	return nil
}

// entry is an initialiser as it is written.
type entry struct {
	name      string
	dims      []int64
	kind      uint64
	pieces    []field // with its numbers
	away      bool    // these are in another file
	elsewhere map[string]string
}

// initialiser reads a tensor of the graph.
func (o *onnx) initialiser(x field) error {
	e := entry{elsewhere: map[string]string{}}
	if err := fields(x.at, x.bytes, e.read); err != nil {
		return err
	}
	broken := func(format string, args ...any) error {
		return &Error{File: o.File.name, Tensor: e.name, Text: fmt.Sprintf(format, args...)}
	}
	if _, twice := o.tensors[e.name]; twice || e.name == "" {
		return broken("is there twice, or has no name")
	}
	t := Tensor{Type: onnxTypes[e.kind], Shape: make([]int, len(e.dims))}
	size, known := sizes[t.Type]
	if !known {
		t.Type = fmt.Sprintf("type %d of ONNX", e.kind)
	}
	want, err := shaped(t.Shape, e.dims, size)
	switch {
	case err != nil:
		return broken("%v", err)
	case !known:
	case e.away:
		if err := o.elsewhere(&t, e, want); err != nil {
			return broken("%v", err)
		}
	case len(e.pieces) == 0 && want > 0: // a piece for each number, or wider ones
		t.Type += " in a form that is not read"
	case len(e.pieces) > 1:
		return broken("has its numbers in %d pieces", len(e.pieces))
	case len(e.pieces) == 1:
		p := e.pieces[0]
		if t.begin, t.end = p.at, p.at+int64(len(p.bytes)); t.end-t.begin != want {
			return broken("has %d bytes, though %s %v has %d: cut off?", len(p.bytes), t.Type, t.Shape, want)
		}
	}
	o.tensors[e.name] = t
	return nil
}

func (e *entry) read(x field) (err error) {
	switch {
	case x.number == 1:
		dims := []uint64{x.value}
		if x.kind == protowire.BytesType { // packed
			if dims, err = varints(x.bytes); err != nil {
				return err
			}
		}
		for _, d := range dims {
			e.dims = append(e.dims, int64(d))
		}
		if len(e.dims) > maxRank {
			return fmt.Errorf("a tensor of more than %d dims", maxRank)
		}
	case x.is(2, protowire.VarintType):
		e.kind = x.value
	case x.is(4, protowire.BytesType), x.is(9, protowire.BytesType): // both little-endian
		if len(x.bytes) > 0 {
			e.pieces = append(e.pieces, x)
		}
	case x.is(8, protowire.BytesType):
		e.name, err = x.text()
	case x.is(13, protowire.BytesType):
		var pair [3]string
		err = fields(x.at, x.bytes, func(x field) (err error) {
			if x.is(1, protowire.BytesType) || x.is(2, protowire.BytesType) {
				pair[x.number], err = x.text()
			}
			return err
		})
		e.elsewhere[pair[1]] = pair[2]
	case x.is(14, protowire.VarintType):
		e.away = x.value == 1
	}
	return err
}

func varints(bytes []byte) (all []uint64, err error) {
	for len(bytes) > 0 {
		v, n := protowire.ConsumeVarint(bytes)
		if n < 0 || len(all) > maxRank {
			return nil, errors.New("dims that cannot be read, or too many")
		}
		all, bytes = append(all, v), bytes[n:]
	}
	return all, nil
}

// elsewhere finds the numbers of a tensor that are in another file.
func (o *onnx) elsewhere(t *Tensor, e entry, want int64) (err error) {
	name := filepath.FromSlash(e.elsewhere["location"])
	if !filepath.IsLocal(name) {
		return fmt.Errorf("its numbers are in the file %q, which is not in the model's folder", name)
	}
	number := func(key string, otherwise int64) int64 {
		text, ok := e.elsewhere[key]
		if !ok {
			return otherwise
		}
		n, wrong := strconv.ParseInt(text, 10, 64)
		if wrong != nil || n < 0 {
			err = fmt.Errorf("%s %.40q is no number of bytes", key, text)
		}
		return n
	}
	begin, length := number("offset", 0), number("length", want)
	if err != nil {
		return err
	}
	if t.in = o.opened[name]; t.in == nil {
		if len(o.others) == maxFiles {
			return fmt.Errorf("its numbers are in one file more than the %d that a model may have", maxFiles)
		}
		if t.in, err = o.open(name); err != nil {
			return err
		}
		o.opened[name], o.others = t.in, append(o.others, t.in)
	}
	if size := int64(len(t.in.bytes)); length != want || begin > size || want > size-begin {
		return fmt.Errorf("its %d bytes are said to be %d from byte %d of %q, which has %d", want, length, begin, name, size)
	}
	t.begin, t.end = begin, begin+want
	return nil
}
