package oplist

import (
	"encoding/json"
	"path/filepath"
	"regexp"
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

func parseHeader(file string, line []byte) header {
	f := fields{file: file, line: 1}.read(line, headerFields...)
	f.need("model", "symbols", "dtype", "ops")
	for _, name := range []string{"structure_from", "licence", "note"} {
		f.text(name)
	}
	h := header{fields: f, model: f.text("model")}
	if h.model == "" {
		f.fail("model", "empty; name the model")
	}
	if dtype := f.text("dtype"); dtype != "f32" {
		f.fail("dtype", "%q is not supported; only f32 is", dtype)
	}
	h.weights = f.text("weights")
	if f.raw["weights"] != nil && (h.weights == "" || h.weights == "." || h.weights == ".." || filepath.Base(h.weights) != h.weights) {
		f.fail("weights", "%q is not the plain name of a safetensors file beside the list", h.weights)
	}
	if h.ops, _ = f.whole("ops"); h.ops == 0 || h.ops > maxOps {
		f.fail("ops", "is %d; a list has 1 to %d operations", h.ops, maxOps)
	}
	h.symbols = parseSymbols(f)
	return h
}

var identifier = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,15}$`)

func parseSymbols(f fields) (symbols map[string]string) {
	if err := json.Unmarshal(f.raw["symbols"], &symbols); err != nil || len(symbols) == 0 {
		f.fail("symbols", `not an object of names and meanings such as {"B": "batch", "S": "sequence length"}`)
	}
	if len(symbols) > maxSymbols {
		f.fail("symbols", "%d symbols; at most %d", len(symbols), maxSymbols)
	}
	for s := range symbols {
		if !identifier.MatchString(s) {
			f.fail("symbols", "%q is not a symbol: a letter, then up to 15 letters and digits", s)
		}
	}
	return symbols
}

// depending counts the operations that differ from shape to shape.
func (m *Model) depending() (n int) {
	for i := range m.Ops {
		if m.Ops[i].symbolic() {
			n++
		}
	}
	return n
}

// checkTotals compares the totals the header gives with the list.
func (h header) checkTotals(m *Model) {
	for _, total := range []struct {
		field, what string
		count       func() int
	}{
		{"weight_tensors", "weight tensors", func() int { return len(m.Weights) }},
		{"params", "parameters", m.Params},
		{"weight_bytes", "bytes of weights", func() int { return 4 * m.Params() }},
		{"distinct_primitives_per_shape", "distinct primitives", m.Distinct},
		{"ops_depending_on_shape", "operations with a symbol in their dims", m.depending},
	} {
		said, given := h.whole(total.field)
		if !given {
			continue
		}
		if is := total.count(); said != is {
			h.fail(total.field, "says %d, the list has %d %s: is a line or a weight missing?", said, is, total.what)
		}
	}
}
