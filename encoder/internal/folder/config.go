package folder

import (
	"cmp"
	"math"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// The most that a config may ask for. They bound what is computed from it before the
// weights, which must have these sizes, are looked at.
const (
	mostWidth  = 1 << 16
	mostLayers = 512
	mostRows   = 1 << 24 // of a table
)

// config is what config.json says of a model of the BERT family.
type config struct {
	file                                string
	width, layers, heads, inner         int
	vocabulary, positions, types, score int // score: labels of a classifier, 0 = none
	epsilon                             float64
	raw                                 bool // scores are what the classifier gives
}

// readConfig reads config.json of the model. Fields that BertConfig has a default for
// and every writer of it writes are wanted here: the number of heads, say, is in no
// tensor's shape.
func readConfig(dir, file string) (config, error) {
	o, absent, err := readObject(dir, file)
	if absent {
		err = refuse(fault.ErrInvalid, file, "", "is missing: name a folder with a model")
	}
	if err != nil {
		return config{}, err
	}
	o.need("model_type")
	o.only("model_type", "bert")
	o.off("auto_map", "quantization_config", "is_decoder", "is_encoder_decoder", "add_cross_attention", "pruned_heads")
	var architectures []string
	o.decode("architectures", &architectures, "a list of texts")
	c := config{file: file}
	for _, a := range architectures {
		switch {
		case !strings.HasPrefix(a, "Bert"):
			o.refuse(fault.ErrUnsupported, "architectures", "has %.40q, want models of BERT", a)
		case a == "BertForSequenceClassification":
			c.score = o.labels()
			c.raw = o.rawScores()
		}
	}
	o.only("hidden_act", "gelu", "gelu_python") // both the exact one
	o.only("position_embedding_type", "absolute")
	o.need("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "max_position_embeddings")
	c.width = o.whole("hidden_size", 0, 1, mostWidth)
	c.layers = o.whole("num_hidden_layers", 0, 1, mostLayers)
	c.heads = o.whole("num_attention_heads", 0, 1, mostWidth)
	c.inner = o.whole("intermediate_size", 0, 1, mostWidth*16)
	c.vocabulary = o.whole("vocab_size", 0, 1, mostRows)
	c.positions = o.whole("max_position_embeddings", 0, 1, mostRows)
	c.types = o.whole("type_vocab_size", 2, 1, mostRows)
	c.epsilon = 1e-12
	if o.decode("layer_norm_eps", &c.epsilon, "a number") && !(c.epsilon >= math.SmallestNonzeroFloat32 && c.epsilon < 1) {
		o.refuse(fault.ErrInvalid, "layer_norm_eps", "is %g, want a number above 0 and below 1", c.epsilon)
	}
	if n := o.whole("embedding_size", c.width, 1, mostWidth); n != c.width {
		o.refuse(fault.ErrUnsupported, "embedding_size", "is %d, want the hidden_size, %d", n, c.width)
	}
	if o.err == nil && c.width%c.heads != 0 {
		o.refuse(fault.ErrInvalid, "num_attention_heads", "is %d, which does not divide the hidden_size, %d", c.heads, c.width)
	}
	return c, o.err
}

// rawScores tells whether scores are not put through a sigmoid, as those of one label are
// where a config does not say otherwise.
func (o *object) rawScores() bool {
	var newer struct {
		Activation string `json:"activation_fn"`
	}
	const field, older = "sentence_transformers", "sbert_ce_default_activation_function"
	o.decode(field, &newer, "an object")
	if newer.Activation != "" {
		return o.isRaw(field, newer.Activation)
	}
	return o.isRaw(older, cmp.Or(o.text(older, ""), "Sigmoid"))
}

// isRaw tells whether an activation, which the field names, leaves scores as they are.
func (o *object) isRaw(field, activation string) bool {
	switch activation[strings.LastIndexByte(activation, '.')+1:] {
	case "Identity":
		return true
	case "Sigmoid":
	default:
		o.refuse(fault.ErrUnsupported, field, "is %.80q, want one that ends with Sigmoid or Identity", activation)
	}
	return false
}

// labels is how many scores a classifier has.
func (o *object) labels() int {
	var names map[string]any
	if o.decode("id2label", &names, "an object") {
		return len(names)
	}
	return o.whole("num_labels", 2, 1, mostRows)
}
