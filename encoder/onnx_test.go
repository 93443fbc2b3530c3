package encoder_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kiln-cache/kiln/encoder"
	"github.com/kiln-cache/kiln/fault"
)

// message is one of protobuf.
type message []byte

func (m message) text(number protowire.Number, text string) message {
	return protowire.AppendString(protowire.AppendTag(m, number, protowire.BytesType), text)
}

func (m message) with(number protowire.Number, inner message) message {
	return m.text(number, string(inner))
}

func (m message) whole(number protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, number, protowire.VarintType), v)
}

// model is a graph as a file.
func model(graph message) []byte {
	return message{}.whole(1, 7).text(2, "pytorch").with(7, graph).with(8, message{}.whole(2, 14))
}

func node(op, output string, inputs ...string) (m message) {
	for _, in := range inputs {
		m = m.text(1, in)
	}
	return m.text(2, output).text(3, "/"+output).text(4, op)
}

func transB(on uint64) message { return message{}.text(1, "transB").whole(3, on) }

// initialiser is a tensor of a graph; turned, the transposed of this one.
func initialiser(name, kind, form string, turned bool, t tensor, files map[string][]byte) (m message) {
	var bytes []byte
	rows, columns := t.shape[0], 1
	if len(t.shape) > 1 {
		columns = t.shape[1]
	}
	for i := range t.values {
		v := t.values[i]
		if turned {
			v = t.values[i%rows*columns+i/rows]
		}
		if bits := math.Float32bits(v); kind == "F32" {
			bytes = binary.LittleEndian.AppendUint32(bytes, bits)
		} else {
			bytes = binary.LittleEndian.AppendUint16(bytes, uint16(bits>>16))
		}
	}
	shape := slices.Clone(t.shape)
	if turned {
		slices.Reverse(shape)
	}
	for _, d := range shape {
		m = m.whole(1, uint64(d))
	}
	m = m.whole(2, map[string]uint64{"F32": 1, "BF16": 16}[kind])
	switch form {
	case "floats":
		m = m.text(4, string(bytes))
	case "away":
		const file = "weights.data"
		entry := func(key, value string) { m = m.with(13, message{}.text(1, key).text(2, value)) }
		entry("location", file)
		entry("offset", fmt.Sprint(len(files[file])))
		entry("length", fmt.Sprint(len(bytes)))
		m = m.whole(14, 1)
		files[file] = append(files[file], bytes...)
	default:
		m = m.text(9, string(bytes))
	}
	return m.text(8, name)
}

// onnx is model.onnx as far as weights are concerned. Forms: as PyTorch exports it, or
// floats, away (in another file), kept (kernels under their names), gemm, identity.
func (b *bert) onnx(kind, form string, files map[string][]byte) []byte {
	var graph message
	for i, name := range slices.Sorted(maps.Keys(b.tensors)) {
		t, at := b.tensors[name], fmt.Sprintf("onnx::MatMul_%d", 800+i)
		layer, weight := strings.CutSuffix(name, ".weight")
		_, linear := b.tensors[layer+".bias"]
		turned := true
		switch {
		case !weight || !linear || len(t.shape) == 1:
			if turned, at = false, name; form == "identity" && !weight {
				at = "shared " + name
				graph = graph.with(1, node("Identity", name, at))
			}
		case form == "kept":
			turned, at = false, name
			graph = graph.with(1, node("Transpose", layer+".t", at)).with(1, node("MatMul", layer, "x", layer+".t")).with(1, node("Add", layer+".sum", layer, layer+".bias"))
		case form == "gemm" || layer == "classifier":
			turned = i%2 == 0
			graph = graph.with(1, node("Gemm", layer, "x", at, layer+".bias").with(5, transB(uint64(i%2))))
		default:
			graph = graph.with(1, node("MatMul", layer, "x", at)).with(1, node("Add", layer+".sum", layer+".bias", layer))
		}
		if strings.HasSuffix(name, "intermediate.dense.weight") {
			graph = graph.with(1, node("Erf", layer+".erf", layer+".sum"))
		}
		graph = graph.with(5, initialiser(at, kind, form, turned, t, files))
	}
	return model(graph)
}

// Weights out of an ONNX model compute the bits that the same in a safetensors file do,
// however the exporter wrote and named them.
func TestONNX(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	want, err := open(t, rt, put(t, b.files()), encoder.Config{}).EncodeTokens(bg, shortTexts)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{{"F32", "raw", "model.onnx"}, {"F32", "raw", "onnx/model.onnx"}, {"F32", "floats", "model.onnx"}, {"BF16", "raw", "model.onnx"}, {"F32", "away", "model.onnx"},
		{"F32", "kept", "model.onnx"}, {"F32", "gemm", "model.onnx"}, {"F32", "identity", "model.onnx"}} {
		files := b.files()
		delete(files, "model.safetensors")
		files[c[2]] = b.onnx(c[0], c[1], files)
		e, err := encoder.Open(bg, rt, put(t, files), encoder.Config{})
		if err != nil {
			t.Errorf("%v: %v", c, err)
			continue
		}
		got, err := e.EncodeTokens(bg, shortTexts)
		if err := errors.Join(err, e.Close(bg)); err != nil {
			t.Errorf("%v: %v", c, err)
		}
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Errorf("%v: text %d has other bits", c, i)
			}
		}
	}
}

// A cross-encoder's head has the same bits too, stored either way.
func TestONNXScores(t *testing.T) {
	b := judge()
	rt := openRuntime(t)
	pairs, _, _ := pairsOf([][2]int{{1, 2}, {4, 3}})
	files := b.judgeFiles()
	want, err := open(t, rt, put(t, files), encoder.Config{}).Score(bg, pairs)
	if err != nil {
		t.Fatal(err)
	}
	delete(files, "model.safetensors")
	for _, form := range []string{"raw", "kept", "gemm"} {
		files["model.onnx"] = b.onnx("F32", form, files)
		got, err := open(t, rt, put(t, files), encoder.Config{}).Score(bg, pairs)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v, %v", form, got, want, err)
		}
	}
}

// A graph that is not the model of the config, and numbers that are not where it says, are
// errors that name what is wrong. No path leads out of the folder.
func TestRefusedONNX(t *testing.T) {
	b := newBERT()
	rt := openRuntime(t)
	outside := filepath.Join(t.TempDir(), "weights.data")
	if err := os.WriteFile(outside, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	swap := func(old, text string) func(map[string][]byte) { // of the same length
		return func(f map[string][]byte) {
			f["model.onnx"] = []byte(strings.ReplaceAll(string(f["model.onnx"]), old, text))
		}
	}
	more := func(nodes ...message) func(map[string][]byte) {
		return func(f map[string][]byte) {
			whole := b.onnx("F32", "raw", f)
			graph, _ := protowire.ConsumeBytes(whole[len(model(nil))-len(message{}.with(8, message{}.whole(2, 14)))-1:])
			for _, n := range nodes {
				graph = message(graph).with(1, n)
			}
			f["model.onnx"] = model(graph)
		}
	}
	tensors := func(change func(tensors map[string]tensor)) func(map[string][]byte) {
		return func(f map[string][]byte) {
			other := newBERT()
			change(other.tensors)
			f["model.onnx"] = other.onnx("F32", "raw", f)
		}
	}
	named := func(n message, op string) message { return n.text(7, op) }
	for name, c := range map[string]struct {
		change   func(files map[string][]byte)
		sentinel error
		words    []string
	}{
		"a pooler's tanh": {more(node("Tanh", "x")), nil, nil},
		"fused":           {more(named(node("Attention", "fused"), "com.microsoft")), fault.ErrUnsupported, []string{"/fused", "com.microsoft.Attention"}},
		"quantised":       {more(node("MatMulInteger", "quant")), fault.ErrUnsupported, []string{"/quant", "MatMulInteger"}},
		"other GELU":      {more(node("Gelu", "gelu").with(5, message{}.text(1, "approximate").text(4, "tanh"))), fault.ErrUnsupported, []string{"/gelu", "GELU"}},
		"tanh GELU":       {more(node("Tanh", "x"), node("Tanh", "y")), fault.ErrUnsupported, []string{"2 nodes Tanh"}},
		"scaled":          {more(node("Gemm", "scaled").with(5, message{}.text(1, "alpha").whole(3, 2))), fault.ErrUnsupported, []string{"/scaled", "alpha"}},
		"ReLU":            {swap("\x03Erf", "\x03Abs"), fault.ErrInvalid, []string{"0 nodes Erf", "config.json says 2 layers"}},
		"more layers":     {func(f map[string][]byte) { f["config.json"] = changed(f["config.json"], "num_hidden_layers", 3) }, fault.ErrInvalid, []string{"encoder.layer.2.output.dense.weight", "model.onnx"}},
		"fewer layers":    {func(f map[string][]byte) { f["config.json"] = changed(f["config.json"], "num_hidden_layers", 1) }, fault.ErrInvalid, []string{"2 nodes Erf", "config.json says 1 layers"}},
		"no bias":         {tensors(func(all map[string]tensor) { delete(all, "encoder.layer.1.attention.self.key.bias") }), fault.ErrInvalid, []string{"encoder.layer.1.attention.self.key"}},
		"no table":        {tensors(func(all map[string]tensor) { delete(all, "embeddings.word_embeddings.weight") }), fault.ErrInvalid, []string{"embeddings.word_embeddings.weight", "missing"}},
		"shape":           {func(f map[string][]byte) { f["config.json"] = changed(f["config.json"], "intermediate_size", 41) }, fault.ErrInvalid, []string{"encoder.layer.0.intermediate.dense.weight", "[24 40]", "[24 41]"}},
		"not multiplied":  {swap("\x06MatMul", "\x06Gather"), fault.ErrInvalid, []string{"dense.weight"}},
		"up":              {swap("weights.data", "../ights.dat"), fault.ErrInvalid, []string{"../ights.dat"}},
		"absolute":        {swap("weights.data", "/etc/passwd\x00"), fault.ErrInvalid, []string{"/etc/passwd"}},
		"no file":         {swap("weights.data", "weights.dat2"), fault.ErrInvalid, []string{"weights.dat2"}},
		"short":           {func(f map[string][]byte) { f["weights.data"] = f["weights.data"][:len(f["weights.data"])-1] }, fault.ErrInvalid, []string{"weights.data"}},
		"empty":           {func(f map[string][]byte) { f["weights.data"] = nil }, fault.ErrInvalid, []string{"weights.data", "has 0"}},
		"nothing":         {func(f map[string][]byte) { f["model.onnx"] = nil }, fault.ErrInvalid, []string{"model.onnx", "0 graphs"}},
		"two graphs":      {func(f map[string][]byte) { f["model.onnx"] = append(f["model.onnx"], f["model.onnx"]...) }, fault.ErrInvalid, []string{"2 graphs"}},
		"no protobuf":     {func(f map[string][]byte) { f["model.onnx"] = f["vocab.txt"] }, fault.ErrInvalid, []string{"model.onnx", "not an ONNX model"}},
	} {
		t.Run(name, func(t *testing.T) {
			files := b.files()
			delete(files, "model.safetensors")
			files["model.onnx"] = b.onnx("F32", "away", files)
			c.change(files)
			e, err := encoder.Open(bg, rt, put(t, files), encoder.Config{})
			if e != nil {
				defer e.Close(bg)
			}
			if !errors.Is(err, c.sentinel) || len(fmt.Sprint(err)) > 2000 {
				t.Fatalf("%v, want %v", err, c.sentinel)
			}
			for _, word := range c.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("no %q in %q", word, err)
				}
			}
		})
	}
	files := b.files()
	delete(files, "model.safetensors")
	files["model.onnx"] = b.onnx("F32", "away", files)
	delete(files, "weights.data")
	dir := put(t, files)
	if err := os.Symlink(outside, filepath.Join(dir, "weights.data")); err != nil {
		t.Skip(err)
	}
	if err := openOnly(t, dir); err == nil {
		t.Error("a link leads out of the folder")
	}
}

// exported is the folder of a real model with its ONNX export in place of its safetensors file.
func exported(t *testing.T) (dir string) {
	t.Helper()
	plain := minilm(t)
	export, err := filepath.Abs("../.cache/onnxruntime/model.onnx")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(export); errors.Is(err, fs.ErrNotExist) {
		t.Skip("MiniLM as ONNX is not here; fetch it with: make fetch-onnxruntime")
	}
	dir = t.TempDir()
	if err := os.CopyFS(dir, without{os.DirFS(plain)}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(export, filepath.Join(dir, "model.onnx")); err != nil {
		t.Skip(err)
	}
	return dir
}

// The ONNX export of a real model, which keeps its kernels transposed under other names,
// gives the bits of its safetensors file.
func TestReferenceFromONNX(t *testing.T) {
	rt := openRuntime(t)
	plain, dir := minilm(t), exported(t)
	var ids [][]int32
	rows := references(t)
	for _, r := range rows {
		ids = append(ids, r.IDs)
	}
	want, err := open(t, rt, plain, encoder.Config{}).EncodeTokens(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	got, err := open(t, rt, dir, encoder.Config{}).EncodeTokens(bg, ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range rows {
		if absolute, _ := apart(got[i], r.embedding()); !slices.Equal(got[i], want[i]) || !(absolute <= 2e-6) {
			t.Errorf("row %d: other bits than those of model.safetensors, %g from float64", i, absolute)
		}
	}
}

// without is a folder without model.safetensors.
type without struct{ fs.FS }

func (w without) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "model.safetensors" }), err
}
