package oplist

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"unicode/utf8"
)

const (
	maxFile    = 16 << 20                // bytes of a list
	maxLine    = 1 << 16                 // bytes of a line
	maxOps     = 1 << 14                 // operations of a list
	maxWeights = 8                       // weights of one operation
	maxParams  = min(1<<34, math.MaxInt) // weight elements of a model: 64 GiB
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
func Parse(file string, text []byte) (m *Model, err error) {
	defer recoverError(&err)
	return parse(file, text), nil
}

func parse(file string, text []byte) *Model {
	switch {
	case len(bytes.TrimSpace(text)) == 0:
		fail(file, 0, "", "empty; want an op list in JSON lines, a header first")
	case len(text) > maxFile:
		fail(file, 0, "", "longer than %d bytes, the most an op list may have", maxFile)
	case bytes.IndexByte(text, 0) >= 0 || !utf8.Valid(text):
		fail(file, 0, "", "binary; want an op list in JSON lines (weights belong into a safetensors file beside it)")
	}
	text = bytes.TrimSuffix(text, []byte("\n"))
	if n := bytes.Count(text, []byte("\n")); n > maxOps {
		fail(file, 0, "", "%d lines; a list has a header and at most %d operations", n+1, maxOps)
	}
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if len(line) > maxLine {
			fail(file, i+1, "", "longer than %d bytes, the most a line may have", maxLine)
		}
	}
	h := parseHeader(file, lines[0])
	if h.ops != len(lines)-1 {
		h.fail("ops", "says %d operations, but %d lines follow; was the file cut off?", h.ops, len(lines)-1)
	}
	m := &Model{Name: h.model, File: file, Symbols: h.symbols, WeightsFile: h.weights, Ops: make([]Op, 0, h.ops)}
	names, known := map[string]bool{}, shapeTexts{}
	for i, line := range lines[1:] {
		op, f := parseOp(file, i, line, m.Symbols, known)
		if names[op.Name] {
			f.fail("name", "%q is the name of an operation before; names are unique", op.Name)
		}
		names[op.Name] = true
		op.check(f)
		m.Ops = append(m.Ops, op)
	}
	m.collectWeights()
	m.resolve()
	h.checkTotals(m)
	return m
}

// fail is about the operation at this place.
func (m *Model) fail(i int, field, format string, args ...any) {
	fail(m.File, m.Ops[i].Line, field, format, args...)
}

// collectWeights lists each weight once; operations may share one of one shape.
func (m *Model) collectWeights() {
	first := map[string]Weight{}
	total := 0
	for i := range m.Ops {
		for _, w := range m.Ops[i].Weights {
			if other, ok := first[w.Name]; ok {
				if fmt.Sprint(other.Shape) != fmt.Sprint(w.Shape) || other.Role != w.Role {
					m.fail(i, "weights", "%q is a %s of shape %v here and a %s of %v before; give one of them another name",
						w.Name, w.Role, w.Shape, other.Role, other.Shape)
				}
				continue
			}
			first[w.Name] = w
			m.Weights = append(m.Weights, w)
			if w.Elements() > maxParams-total {
				m.fail(i, "weights", "the weights have more than %d elements together, the most a model may have", maxParams)
			}
			total += w.Elements()
		}
	}
}

var opFields = []string{"i", "kind", "name", "src", "dst", "weights", "weight_bytes", "attr", "phase", "fwd_i"}

// shapeTexts are the dims that were read, by their text: the layers of a list repeat them.
type shapeTexts map[string][]Dim

func (known shapeTexts) parse(raw json.RawMessage, symbols map[string]string) ([]Dim, error) {
	if dims, ok := known[string(raw)]; ok {
		return dims, nil
	}
	dims, err := parseDims(raw, symbols)
	if err == nil {
		known[string(raw)] = dims
	}
	return dims, err
}

func parseOp(file string, place int, line []byte, symbols map[string]string, known shapeTexts) (Op, fields) {
	f := fields{file: file, line: place + 2}.read(line, opFields...)
	if f.raw["phase"] != nil || f.raw["fwd_i"] != nil {
		f.fail("phase", "this is an operation of a training step; use the list of the forward pass")
	}
	f.need("i", "kind", "name", "src", "dst")
	if i, _ := f.whole("i"); i != place {
		f.fail("i", "is %d at place %d; number the operations from 0 in their order", i, place)
	}
	op := Op{Line: f.line, Kind: Kind(f.text("kind")), Name: f.text("name")}
	if _, ok := shapes[op.Kind]; !ok {
		f.fail("kind", "%q is not known; an encoder has %s", op.Kind, kindNames())
	}
	if op.Name == "" {
		f.fail("name", "empty; name each operation")
	}
	var err error
	for n, raw := range f.list("src", 2) {
		dims, err := known.parse(raw, symbols)
		if err != nil {
			f.fail("src", "input %d: %v", n, err)
		}
		op.Src = append(op.Src, dims)
	}
	if op.Dst, err = known.parse(f.raw["dst"], symbols); err != nil {
		f.fail("dst", "%v", err)
	}
	op.Weights = parseWeights(f)
	rank := 0
	if len(op.Src) > 0 {
		rank = len(op.Src[0])
	}
	if op.Attr, err = parseAttr(op.Kind, f.text("attr"), rank); err != nil {
		f.fail("attr", "%v", err)
	}
	return op, f
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
		if err != nil || n == 0 || n >= maxDim {
			return nil, fmt.Errorf("dim %d: %.40s is neither a whole number from 1 to %d nor an expression in double quotes", i, v, maxDim-1)
		}
		dims[i] = number(n)
	}
	if _, err := elements(dims); err != nil {
		return nil, err
	}
	return dims, nil
}

// parseWeights reads the weights and compares every count of bytes given.
func parseWeights(f fields) (weights []Weight) {
	total := 0
	for n, raw := range f.list("weights", maxWeights) {
		w := parseWeight(fields{file: f.file, line: f.line, outer: "weights", prefix: fmt.Sprintf("weight %d: ", n)}.read(raw, "name", "shape", "bytes"))
		total += 4 * w.Elements()
		weights = append(weights, w)
	}
	if said, given := f.whole("weight_bytes"); given && said != total {
		f.fail("weight_bytes", "says %d, the weights named have %d: is one missing?", said, total)
	}
	return weights
}

func parseWeight(f fields) Weight {
	f.need("name", "shape", "bytes")
	w := Weight{Name: f.text("name")}
	if w.Name == "" {
		f.fail("name", "empty; name each weight")
	}
	count := 1
	for _, d := range f.list("shape", maxRank) {
		n, err := wholeNumber(d)
		if err != nil || n == 0 || n >= maxDim {
			f.fail("shape", "%.40s is not a whole number from 1 to %d", d, maxDim-1)
		}
		if count, err = multiply(count, n); err != nil {
			f.fail("shape", "%v", err)
		}
		w.Shape = append(w.Shape, n)
	}
	if len(w.Shape) == 0 {
		f.fail("shape", "empty; give at least one dim")
	}
	if said, _ := f.whole("bytes"); said != 4*count {
		f.fail("bytes", "says %d, a float32 tensor of shape %v has %d", said, w.Shape, 4*count)
	}
	return w
}

// WeightsPath is the safetensors file beside the list, empty where the list
// names none.
func (m *Model) WeightsPath() string {
	if m.WeightsFile == "" {
		return ""
	}
	return filepath.Join(filepath.Dir(m.File), m.WeightsFile)
}
