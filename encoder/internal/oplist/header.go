package oplist

import (
	"encoding/json"
	"path/filepath"
)

// header is the first line. The totals that are given must be true, so that a
// list with a weight or a line taken out is noticed.
type header struct {
	fields
	model   string
	weights string
	symbols map[string]string
	ops     int
}

var headerFields = []string{"model", "structure_from", "licence", "symbols", "dtype", "note", "weights", "ops",
	"weight_bytes", "params", "weight_tensors", "distinct_primitives_per_shape", "ops_depending_on_shape"}

const maxSymbols = 8

func parseHeader(file string, line []byte) (header, error) {
	f, err := readFields(file, 1, line, headerFields)
	h := header{fields: f}
	if err != nil {
		return h, err
	}
	if err := f.need("model", "symbols", "dtype", "ops"); err != nil {
		return h, err
	}
	for _, name := range []string{"structure_from", "licence", "note"} {
		if _, err := f.text(name); err != nil {
			return h, err
		}
	}
	if h.model, err = f.text("model"); err != nil {
		return h, err
	}
	if h.model == "" {
		return h, f.errorf("model", "empty; name the model")
	}
	dtype, err := f.text("dtype")
	if err != nil {
		return h, err
	}
	if dtype != "f32" {
		return h, f.errorf("dtype", "%q is not supported; only f32 is", dtype)
	}
	if h.weights, err = f.text("weights"); err != nil {
		return h, err
	}
	if f.raw["weights"] != nil && (h.weights == "" || h.weights == "." || h.weights == ".." || filepath.Base(h.weights) != h.weights) {
		return h, f.errorf("weights", "%q is not the plain name of a safetensors file beside the list", h.weights)
	}
	if h.ops, _, err = f.whole("ops"); err != nil {
		return h, err
	}
	if h.ops == 0 || h.ops > maxOps {
		return h, f.errorf("ops", "is %d; a list has 1 to %d operations", h.ops, maxOps)
	}
	h.symbols, err = parseSymbols(f)
	return h, err
}

func parseSymbols(f fields) (map[string]string, error) {
	var symbols map[string]string
	if err := json.Unmarshal(f.raw["symbols"], &symbols); err != nil || len(symbols) == 0 {
		return nil, f.errorf("symbols", `not an object of names and meanings such as {"B": "batch", "S": "sequence length"}`)
	}
	if len(symbols) > maxSymbols {
		return nil, f.errorf("symbols", "%d symbols; at most %d", len(symbols), maxSymbols)
	}
	for s := range symbols {
		if !identifier(s) {
			return nil, f.errorf("symbols", "%q is not a symbol: a letter, then up to 15 letters and digits", s)
		}
	}
	return symbols, nil
}

func identifier(s string) bool {
	for i, c := range []byte(s) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 16
}

// checkTotals compares the totals the header gives with the list.
func (h header) checkTotals(m *Model) error {
	depending := 0
	for i := range m.Ops {
		if m.Ops[i].symbolic() {
			depending++
		}
	}
	for _, total := range []struct {
		field, what string
		is          int
	}{
		{"weight_tensors", "weight tensors", len(m.Weights)},
		{"params", "parameters", m.Params()},
		{"weight_bytes", "bytes of weights", 4 * m.Params()},
		{"distinct_primitives_per_shape", "distinct primitives", m.Distinct()},
		{"ops_depending_on_shape", "operations with a symbol in their dims", depending},
	} {
		said, given, err := h.whole(total.field)
		if err != nil {
			return err
		}
		if given && said != total.is {
			return h.errorf(total.field, "says %d, the list has %d %s: is a line or a weight missing?", said, total.is, total.what)
		}
	}
	return nil
}
