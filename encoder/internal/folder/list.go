package folder

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/internal/forward"
)

// naming is how a file of weights calls the tensors of a model.
type naming struct {
	prefix       string // "bert." or none
	scale, shift string // of a layer norm: "weight" and "bias", or "gamma" and "beta"
}

// builder writes an op list.
type builder struct {
	config
	naming
	lines []string
}

// list is the op list of the model: the last layer's output for each token.
func (c config) list(name string, n naming) (*forward.List, error) {
	b := &builder{config: c, naming: n}
	h := strconv.Itoa(c.width)
	ids, tokens, rows := `"B","S"`, `"B","S",`+h, `"B*S",`+h
	b.add("gather", "embeddings.words", src(ids), tokens, "", b.weight("embeddings.word_embeddings.weight", c.vocabulary, c.width))
	b.add("gather", "embeddings.types", src(ids), tokens, "", b.weight("embeddings.token_type_embeddings.weight", c.types, c.width))
	b.add("add", "embeddings.sum", src(tokens, tokens), tokens, "")
	b.add("add", "embeddings.positions", src(tokens, `1,"S",`+h), tokens, "", b.weight("embeddings.position_embeddings.weight", c.positions, c.width))
	b.norm("embeddings.LayerNorm", rows)
	for layer := range c.layers {
		b.layer("encoder.layer."+strconv.Itoa(layer)+".", rows)
	}
	header, err := json.Marshal(map[string]any{"model": name, "dtype": "f32", "ops": len(b.lines),
		"symbols": map[string]string{"B": "requests", "S": "tokens"}})
	if err != nil {
		return nil, err
	}
	return forward.Parse(c.file, []byte(string(header)+"\n"+strings.Join(b.lines, "\n")+"\n"))
}

// layer is one encoder layer, the layer norms behind the residuals.
func (b *builder) layer(at, rows string) {
	width := b.width / b.heads
	split, heads := fmt.Sprintf(`"B","S",%d,%d`, b.heads, width), fmt.Sprintf(`"B",%d,"S",%d`, b.heads, width)
	scores := fmt.Sprintf(`"B",%d,"S","S"`, b.heads)
	self := at + "attention.self."
	parts := []string{"query", "key", "value"}
	for _, part := range parts {
		b.linear(self+part, rows, b.width, b.width)
	}
	for _, part := range parts {
		b.add("reorder", self+part+".heads", src(split), heads, "perm:0213")
	}
	scale := strconv.FormatFloat(1/math.Sqrt(float64(width)), 'g', -1, 32)
	b.add("batch_matmul", self+"scores", src(heads, fmt.Sprintf(`"B",%d,%d,"S"`, b.heads, width)), scores, "scale:"+scale+";post:mask_add")
	b.add("softmax", self+"softmax", src(scores), scores, "axis:3")
	b.add("batch_matmul", self+"context", src(scores, heads), heads, "")
	b.add("reorder", self+"merge", src(heads), split, "perm:0213")
	b.output(at+"attention.output.", rows, b.width)
	b.linear(at+"intermediate.dense", rows, b.width, b.inner)
	inner := fmt.Sprintf(`"B*S",%d`, b.inner)
	b.add("eltwise", at+"intermediate.gelu", src(inner), inner, "alg:gelu")
	b.output(at+"output.", rows, b.inner)
}

// output is a product back to the model's width, its residual and the layer norm.
func (b *builder) output(at, rows string, from int) {
	b.linear(at+"dense", rows, from, b.width)
	b.add("add", at+"residual", src(rows, rows), rows, "")
	b.norm(at+"LayerNorm", rows)
}

func (b *builder) norm(at, rows string) {
	b.add("layernorm", at, src(rows), rows, "eps:"+strconv.FormatFloat(b.epsilon, 'g', -1, 64),
		b.weight(at+"."+b.scale, b.width), b.weight(at+"."+b.shift, b.width))
}

func (b *builder) linear(at, rows string, from, to int) {
	first, _, _ := strings.Cut(rows, ",")
	b.add("matmul", at, src(fmt.Sprintf("%s,%d", first, from)), fmt.Sprintf("%s,%d", first, to), "",
		b.weight(at+".weight", from, to), b.weight(at+".bias", to))
}

func src(dims ...string) string { return "[" + strings.Join(dims, "],[") + "]" }

// weight is an entry of an operation's weights, under the name that the file has.
func (b *builder) weight(name string, shape ...int) string {
	bytes, dims := 4, make([]string, len(shape))
	for i, d := range shape {
		bytes, dims[i] = bytes*d, strconv.Itoa(d)
	}
	return fmt.Sprintf(`{"name":%q,"shape":[%s],"bytes":%d}`, b.prefix+name, strings.Join(dims, ","), bytes)
}

func (b *builder) add(kind, name, src, dst, attr string, weights ...string) {
	line := fmt.Sprintf(`{"i":%d,"kind":%q,"name":%q,"src":[%s],"dst":[%s]`, len(b.lines), kind, name, src, dst)
	if attr != "" {
		line += fmt.Sprintf(`,"attr":%q`, attr)
	}
	if len(weights) > 0 {
		line += `,"weights":[` + strings.Join(weights, ",") + "]"
	}
	b.lines = append(b.lines, line+"}")
}
