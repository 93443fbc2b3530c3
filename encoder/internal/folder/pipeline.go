package folder

import (
	"encoding/json"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-cache/kiln/fault"
)

// Pooling is how the outputs of a text's tokens become one embedding.
type Pooling string

// The ways of pooling.
const (
	Mean  Pooling = "mean" // of all tokens
	Class Pooling = "cls"  // the first token's
	Max   Pooling = "max"  // the largest of each dimension
)

// Poolings lists them.
func Poolings() []Pooling { return []Pooling{Mean, Class, Max} }

// pipeline is what sentence-transformers' files say of what stands around the model.
type pipeline struct {
	transformer   string // the folder of the model's files, in the folder
	pooling       string // that of the pooling's; empty = none
	alone         bool   // the list of modules has nothing but the model, as that of a cross-encoder
	raw           *bool  // as config has it, where a file beside it says so
	Pooling       Pooling
	Normalize     bool // divide an embedding by its length
	OmitPrompt    bool // the tokens of a prompt are left out of the pooling
	SentenceLimit int  // max_seq_length; 0 = none
	Lower         bool // texts are lowered before the tokenizer gets them
	Prompts       map[string]string
	DefaultPrompt string // its name; empty = none
}

// readPipeline reads modules.json and what is beside it. A folder without it has its
// model in it, whose outputs are averaged: that is what sentence-transformers makes of it.
func readPipeline(dir string) (pipeline, error) {
	p := pipeline{Pooling: Mean}
	text, err := read(dir, "modules.json")
	if err == nil && text != nil {
		err = p.modules(text)
	}
	if err != nil {
		return p, err
	}
	return p, p.sentences(dir)
}

// modules reads the list of modules.
func (p *pipeline) modules(text []byte) error {
	const file = "modules.json"
	var modules []struct {
		Path string `json:"path"`
		Type string `json:"type"`
	}
	if err := json.Unmarshal(text, &modules); err != nil {
		return refuse(fault.ErrInvalid, file, "", "is not a list of modules: %v", err)
	}
	order := []string{"Transformer", "Pooling", "Normalize"}
	for i, m := range modules {
		kind := m.Type[strings.LastIndexByte(m.Type, '.')+1:]
		switch {
		case !slices.Contains(order, kind):
			return refuse(fault.ErrUnsupported, file, "type", "is %.80q, want one that ends with %q", m.Type, order)
		case i > 2 || kind != order[i]:
			return refuse(fault.ErrUnsupported, file, "type", "of module %d is %s, want %v in this order", i, kind, order)
		case m.Path != "" && !filepath.IsLocal(filepath.FromSlash(m.Path)):
			return refuse(fault.ErrInvalid, file, "path", "is %.80q, want a folder in this one", m.Path)
		}
		switch i {
		case 0:
			p.transformer = m.Path
		case 1:
			p.pooling = m.Path
		case 2:
			p.Normalize = true
		}
	}
	p.alone = len(modules) == 1
	if len(modules) == 0 {
		return refuse(fault.ErrUnsupported, file, "", "has no modules, want %v, the last if it normalises", order)
	}
	if p.pooling == "" && !p.alone {
		return refuse(fault.ErrInvalid, file, "path", "of the pooling is empty")
	}
	return nil
}

// sentences reads the limit, the prompts, and what newer versions say there of scores.
func (p *pipeline) sentences(dir string) error {
	const most = 1 << 30
	o, absent, err := readObject(dir, path.Join(p.transformer, "sentence_bert_config.json"))
	if err != nil {
		return err
	}
	if !absent {
		p.SentenceLimit, p.Lower = o.whole("max_seq_length", 0, 1, most), o.flag("do_lower_case")
		if o.err != nil {
			return o.err
		}
	}
	o, absent, err = readObject(dir, "config_sentence_transformers.json")
	if err != nil || absent {
		return err
	}
	o.decode("prompts", &p.Prompts, "an object of texts")
	p.DefaultPrompt = o.text("default_prompt_name", "")
	if _, ok := p.Prompts[p.DefaultPrompt]; o.given("default_prompt_name") && (!ok || p.DefaultPrompt == "") {
		o.refuse(fault.ErrInvalid, "default_prompt_name", "is %.40q, want one of %q", p.DefaultPrompt, slices.Sorted(maps.Keys(p.Prompts)))
	}
	if activation := o.text("activation_fn", ""); activation != "" {
		raw := o.isRaw("activation_fn", activation)
		p.raw = &raw
	}
	return o.err
}

// modes are the fields that choose a pooling, with what they choose. Nothing here computes
// what others choose.
var modes = map[string]Pooling{"pooling_mode_cls_token": Class, "pooling_mode_mean_tokens": Mean, "pooling_mode_max_tokens": Max}

// readPooling reads the config of the pooling of a model of this width.
func (p *pipeline) readPooling(dir string, width int) error {
	if p.pooling == "" {
		return nil
	}
	file := path.Join(p.pooling, "config.json")
	o, absent, err := readObject(dir, file)
	if absent {
		err = refuse(fault.ErrInvalid, file, "", "is missing, though modules.json names its folder")
	}
	if err != nil {
		return err
	}
	for _, field := range []string{"word_embedding_dimension", "embedding_dimension"} {
		if n := o.whole(field, width, 1, mostWidth); n != width {
			o.refuse(fault.ErrInvalid, field, "is %d, want the model's hidden_size, %d", n, width)
		}
	}
	var chosen, several []string
	for _, field := range slices.Sorted(maps.Keys(o.fields)) {
		if strings.HasPrefix(field, "pooling_mode_") && o.flag(field) {
			chosen = append(chosen, field)
		}
	}
	switch {
	case json.Unmarshal(o.fields["pooling_mode"], &several) == nil && several != nil:
		o.refuse(fault.ErrUnsupported, "pooling_mode", "is %.80q, want one mode, as a text", several)
	case o.given("pooling_mode"): // how newer versions write it
		p.Pooling = Pooling(o.only("pooling_mode", string(Mean), string(Class), string(Max)))
	case len(chosen) == 0:
		o.refuse(fault.ErrInvalid, "pooling_mode_mean_tokens", "and the other modes are all off, want one on")
	case modes[chosen[0]] == "":
		o.refuse(fault.ErrUnsupported, chosen[0], "is on, want mean, cls or max")
	default:
		p.Pooling = modes[chosen[0]]
	}
	if len(chosen) > 1 {
		o.refuse(fault.ErrUnsupported, chosen[1], "is on beside %s, want one mode", chosen[0])
	}
	if o.given("include_prompt") {
		p.OmitPrompt = !o.flag("include_prompt")
	}
	return o.err
}
