package tensorfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"unicode/utf8"
)

const (
	maxHeader  = 32 << 20 // bytes of JSON
	maxTensors = 1 << 18
	maxRank    = 16
)

// sizes holds the bytes of one element of each type.
var sizes = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}

func readHeader(name string, content []byte) (map[string]Tensor, error) {
	invalid := func(format string, args ...any) error {
		return &Error{File: name, Text: fmt.Sprintf(format, args...)}
	}
	size := int64(len(content))
	if size < 8 {
		return nil, invalid("%d bytes, too short for a safetensors file", size)
	}
	n := binary.LittleEndian.Uint64(content)
	if n < 2 || n > maxHeader || int64(n) > size-8 {
		return nil, invalid("the first 8 bytes give a header of %d bytes in a file of %d (at most %d are read): not a safetensors file, or cut off",
			n, size, maxHeader)
	}
	text := content[8 : 8+n]
	if text[0] != '{' || !utf8.Valid(text) {
		return nil, invalid("the header does not begin with {: not a safetensors file")
	}
	tensors, err := parseHeader(name, text)
	if err != nil {
		return nil, err
	}
	if err := checkLayout(name, tensors, 8+int64(n), size); err != nil {
		return nil, err
	}
	return tensors, nil
}

// parseHeader reads the JSON. Offsets are still relative to the end of it.
func parseHeader(name string, text []byte) (map[string]Tensor, error) {
	broken := func(tensor string, format string, args ...any) (map[string]Tensor, error) {
		return nil, &Error{File: name, Tensor: tensor, Text: fmt.Sprintf(format, args...)}
	}
	tensors := map[string]Tensor{}
	dec := json.NewDecoder(bytes.NewReader(text))
	if _, err := dec.Token(); err != nil {
		return broken("", "the header is broken JSON: %v", err)
	}
	metadata := false
	for dec.More() {
		tok, err := dec.Token()
		key, ok := tok.(string)
		if err != nil || !ok {
			return broken("", "the header is broken JSON: %v", err)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return broken(key, "the header is broken JSON: %v", err)
		}
		if key == "__metadata__" {
			var texts map[string]string
			if err := json.Unmarshal(raw, &texts); err != nil || metadata {
				return broken(key, "must be there once and hold texts only")
			}
			metadata = true
			continue
		}
		if _, twice := tensors[key]; twice {
			return broken(key, "is in the header twice")
		}
		if len(tensors) == maxTensors {
			return broken(key, "is one more than the %d tensors a file may have", maxTensors)
		}
		t, err := parseTensor(raw)
		if err != nil {
			return broken(key, "%v", err)
		}
		tensors[key] = t
	}
	if _, err := dec.Token(); err != nil {
		return broken("", "the header is broken JSON: %v", err)
	}
	if rest := bytes.Trim(text[dec.InputOffset():], " "); len(rest) > 0 { // writers pad with spaces
		return broken("", "%d bytes of the header follow its JSON object", len(rest))
	}
	return tensors, nil
}

func parseTensor(raw json.RawMessage) (Tensor, error) {
	var entry struct {
		Type    *string `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&entry); err != nil {
		return Tensor{}, fmt.Errorf("its entry is not dtype, shape and data_offsets: %w", err)
	}
	if entry.Type == nil || entry.Shape == nil || len(entry.Offsets) != 2 {
		return Tensor{}, fmt.Errorf("its entry lacks dtype, shape or two data_offsets")
	}
	size, ok := sizes[*entry.Type]
	if !ok {
		return Tensor{}, fmt.Errorf("type %.20q is not known", *entry.Type)
	}
	if len(entry.Shape) > maxRank {
		return Tensor{}, fmt.Errorf("%d dims; at most %d", len(entry.Shape), maxRank)
	}
	t := Tensor{Type: *entry.Type, Shape: make([]int, len(entry.Shape)), begin: entry.Offsets[0], end: entry.Offsets[1]}
	want, err := shaped(t.Shape, entry.Shape, size)
	if err != nil {
		return Tensor{}, err
	}
	if t.begin < 0 || t.end < t.begin || t.end-t.begin != want {
		return Tensor{}, fmt.Errorf("data_offsets %v do not hold the %d bytes of %s %v", entry.Offsets, want, t.Type, t.Shape)
	}
	return t, nil
}

// shaped copies dims to shape, and gives the bytes of a tensor whose elements have this size.
func shaped(shape []int, dims []int64, size int64) (int64, error) {
	for i, d := range dims {
		if d < 0 || d > math.MaxInt {
			return 0, fmt.Errorf("dim %d is %d; a dim is at least 0", i, d)
		}
		hi, lo := bits.Mul64(uint64(size), uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("shape %v is larger than any file", dims)
		}
		size, shape[i] = int64(lo), int(d)
	}
	return size, nil
}

// checkLayout makes offsets absolute and holds the tensors to covering what is
// behind the header exactly once.
func checkLayout(name string, tensors map[string]Tensor, base, size int64) error {
	names := make([]string, 0, len(tensors))
	for n, t := range tensors {
		if t.end > size-base {
			return &Error{File: name, Tensor: n, Text: fmt.Sprintf("ends at byte %d of %d: the file is cut off", t.end, size-base)}
		}
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int {
		x, y := tensors[a], tensors[b]
		return cmp.Or(cmp.Compare(x.begin, y.begin), cmp.Compare(x.end, y.end))
	})
	at := int64(0)
	for _, n := range names {
		t := tensors[n]
		if t.begin != at {
			return &Error{File: name, Tensor: n, Text: fmt.Sprintf("begins at byte %d where %d is next: tensors overlap or leave a gap", t.begin, at)}
		}
		at = t.end
		t.begin, t.end = t.begin+base, t.end+base
		tensors[n] = t
	}
	if at != size-base {
		return &Error{File: name, Text: fmt.Sprintf("%d bytes follow the last tensor", size-base-at)}
	}
	return nil
}
