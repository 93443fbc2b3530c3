package oplist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

const (
	maxFile    = 16 << 20 // bytes of a list
	maxLine    = 1 << 16  // bytes of a line
	maxOps     = 1 << 14  // operations of a list
	maxWeights = 8        // weights of one operation
	maxParams  = 1 << 34  // weight elements of a model: 64 GiB
)

// Open reads the list at path. A file that cannot be read is an *Error too.
func Open(path string) (*Model, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, unreadable(path, err)
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, unreadable(path, err)
	}
	return Parse(path, b)
}

func unreadable(path string, err error) error {
	var inner *os.PathError
	if errors.As(err, &inner) {
		err = inner.Err
	}
	return &Error{File: path, Text: fmt.Sprintf("%v; name a readable op list", err), Cause: err}
}

// Parse reads a list. File is what errors call it.
func Parse(file string, text []byte) (*Model, error) {
	whole := func(format string, args ...any) error {
		return &Error{File: file, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		return nil, whole("empty; want an op list in JSON lines, a header first")
	case len(text) > maxFile:
		return nil, whole("longer than %d bytes, the most an op list may have", maxFile)
	case bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text):
		return nil, whole("binary; want an op list in JSON lines (weights belong into a safetensors file beside it)")
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	if n := bytes.Count(text, []byte("\n")); n > maxOps {
		return nil, whole("%d lines; a list has a header and at most %d operations", n+1, maxOps)
	}
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if len(line) > maxLine {
			return nil, &Error{File: file, Line: i + 1, Text: fmt.Sprintf("longer than %d bytes, the most a line may have", maxLine)}
		}
	}
	h, err := parseHeader(file, lines[0])
	if err != nil {
		return nil, err
	}
	if h.ops != len(lines)-1 {
		return nil, h.errorf("ops", "says %d operations, but %d lines follow; was the file cut off?", h.ops, len(lines)-1)
	}
	m := &Model{Name: h.model, File: file, Symbols: h.symbols, WeightsFile: h.weights, Ops: make([]Op, 0, h.ops)}
	names := map[string]bool{}
	for i, line := range lines[1:] {
		op, f, err := parseOp(file, i, line, m.Symbols)
		if err != nil {
			return nil, err
		}
		if names[op.Name] {
			return nil, f.errorf("name", "%q is the name of an operation before; names are unique", op.Name)
		}
		names[op.Name] = true
		if err := op.check(f); err != nil {
			return nil, err
		}
		m.Ops = append(m.Ops, op)
	}
	if err := m.collectWeights(); err != nil {
		return nil, err
	}
	if err := m.resolve(); err != nil {
		return nil, err
	}
	if err := h.checkTotals(m); err != nil {
		return nil, err
	}
	return m, nil
}

// opError is an error about the operation at this place.
func (m *Model) opError(i int, field, format string, args ...any) error {
	return &Error{File: m.File, Line: m.Ops[i].Line, Field: field, Text: fmt.Sprintf(format, args...)}
}

// collectWeights lists each weight once; operations may share one of one shape.
func (m *Model) collectWeights() error {
	first := map[string]Weight{}
	total := int64(0)
	for i := range m.Ops {
		for _, w := range m.Ops[i].Weights {
			if other, ok := first[w.Name]; ok {
				if fmt.Sprint(other.Shape) != fmt.Sprint(w.Shape) || other.Role != w.Role {
					return m.opError(i, "weights", "%q is a %s of shape %v here and a %s of %v before; give one of them another name",
						w.Name, w.Role, w.Shape, other.Role, other.Shape)
				}
				continue
			}
			first[w.Name] = w
			m.Weights = append(m.Weights, w)
			if total += int64(w.Elements()); total > maxParams {
				return m.opError(i, "weights", "the weights have more than %d elements together, the most a model may have", int64(maxParams))
			}
		}
	}
	return nil
}

var opFields = []string{"i", "kind", "name", "src", "dst", "weights", "weight_bytes", "attr", "phase", "fwd_i"}

func parseOp(file string, place int, line []byte, symbols map[string]string) (Op, fields, error) {
	op := Op{Line: place + 2}
	f, err := readFields(file, op.Line, line, opFields)
	if err != nil {
		return op, f, err
	}
	if f.raw["phase"] != nil || f.raw["fwd_i"] != nil {
		return op, f, f.errorf("phase", "this is an operation of a training step; use the list of the forward pass")
	}
	if err := f.need("i", "kind", "name", "src", "dst"); err != nil {
		return op, f, err
	}
	if i, _, err := f.whole("i"); err != nil {
		return op, f, err
	} else if i != place {
		return op, f, f.errorf("i", "is %d at place %d; number the operations from 0 in their order", i, place)
	}
	kind, err := f.text("kind")
	if err != nil {
		return op, f, err
	}
	op.Kind = Kind(kind)
	if _, ok := shapes[op.Kind]; !ok {
		return op, f, f.errorf("kind", "%q is not known; an encoder has %s", kind, kindNames())
	}
	if op.Name, err = f.text("name"); err != nil {
		return op, f, err
	}
	if op.Name == "" {
		return op, f, f.errorf("name", "empty; name each operation")
	}
	if op.Src, err = parseSources(f, symbols); err != nil {
		return op, f, err
	}
	if op.Dst, err = parseDims(f.raw["dst"], symbols); err != nil {
		return op, f, f.errorf("dst", "%v", err)
	}
	if op.Weights, err = parseWeights(f); err != nil {
		return op, f, err
	}
	text, err := f.text("attr")
	if err != nil {
		return op, f, err
	}
	rank := 0
	if len(op.Src) > 0 {
		rank = len(op.Src[0])
	}
	if op.Attr, err = parseAttr(op.Kind, text, rank); err != nil {
		return op, f, f.errorf("attr", "%v", err)
	}
	return op, f, nil
}

func parseSources(f fields, symbols map[string]string) ([][]Dim, error) {
	list, err := f.list("src", 2)
	if err != nil {
		return nil, err
	}
	sources := make([][]Dim, len(list))
	for n, raw := range list {
		if sources[n], err = parseDims(raw, symbols); err != nil {
			return nil, f.errorf("src", "input %d: %v", n, err)
		}
	}
	return sources, nil
}

func parseDims(raw json.RawMessage, symbols map[string]string) ([]Dim, error) {
	values, err := array(raw, maxRank)
	if err != nil {
		return nil, err
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("no dims; give at least one")
	}
	dims := make([]Dim, len(values))
	for i, v := range values {
		var text string
		if json.Unmarshal(v, &text) == nil && v[0] == '"' {
			if dims[i], err = parseDim(text, symbols); err != nil {
				return nil, fmt.Errorf("dim %d: %w", i, err)
			}
			continue
		}
		n, err := wholeNumber(v)
		if err != nil || n == 0 || n > maxDim {
			return nil, fmt.Errorf("dim %d: %.40s is neither a whole number from 1 to %d nor an expression in double quotes", i, v, maxDim)
		}
		dims[i] = number(n)
	}
	if _, err := elements(dims); err != nil {
		return nil, err
	}
	return dims, nil
}

// parseWeights reads the weights and compares every count of bytes given.
func parseWeights(f fields) ([]Weight, error) {
	list, err := f.list("weights", maxWeights)
	if err != nil {
		return nil, err
	}
	var out []Weight
	total := 0
	for n, raw := range list {
		w, bytes, err := parseWeight(f, raw)
		if err != nil {
			var e *Error
			if errors.As(err, &e) {
				e.Text = fmt.Sprintf("weight %d: %s", n, strings.TrimPrefix(e.Text, "weight: "))
				if e.Field == "" {
					e.Field = "weights"
				} else {
					e.Field = "weights." + e.Field
				}
			}
			return nil, err
		}
		total += bytes
		out = append(out, w)
	}
	said, given, err := f.whole("weight_bytes")
	switch {
	case err != nil:
		return nil, err
	case given && said != total:
		return nil, f.errorf("weight_bytes", "says %d, the weights named have %d: is one missing?", said, total)
	}
	return out, nil
}

func parseWeight(f fields, raw json.RawMessage) (Weight, int, error) {
	g, err := readFields(f.file, f.line, raw, []string{"name", "shape", "bytes"})
	if err != nil {
		return Weight{}, 0, err
	}
	if err := g.need("name", "shape", "bytes"); err != nil {
		return Weight{}, 0, err
	}
	w := Weight{}
	if w.Name, err = g.text("name"); err != nil {
		return w, 0, err
	}
	if w.Name == "" {
		return w, 0, g.errorf("name", "empty; name each weight")
	}
	dims, err := g.list("shape", maxRank)
	if err != nil {
		return w, 0, err
	}
	count := 1
	for _, d := range dims {
		n, err := wholeNumber(d)
		if err != nil || n == 0 || n > maxDim {
			return w, 0, g.errorf("shape", "%.40s is not a whole number from 1 to %d", d, maxDim)
		}
		if count, err = multiply(count, n); err != nil {
			return w, 0, g.errorf("shape", "%v", err)
		}
		w.Shape = append(w.Shape, n)
	}
	if len(w.Shape) == 0 {
		return w, 0, g.errorf("shape", "empty; give at least one dim")
	}
	said, _, err := g.whole("bytes")
	if err != nil {
		return w, 0, err
	}
	if bytes := 4 * int64(count); int64(said) != bytes {
		return w, 0, g.errorf("bytes", "says %d, a float32 tensor of shape %v has %d", said, w.Shape, bytes)
	}
	return w, said, nil
}

// WeightsPath is the safetensors file beside the list, empty where the list
// names none.
func (m *Model) WeightsPath() string {
	if m.WeightsFile == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(m.File), m.WeightsFile)
}
