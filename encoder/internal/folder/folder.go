package folder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/forward"
	"github.com/kiln-cache/kiln/internal/forward/tensorfile"
)

// Folder is a model with its weights. It is immutable, and safe for concurrent use
// until its weights are closed.
type Folder struct {
	pipeline
	Tokenizer  string // the folder of the tokenizer's files
	Width      int    // numbers of an embedding
	Vocabulary int    // ids of the model are below
	Positions  int    // tokens of the longest text
	Types      int    // of tokens
	List       *forward.List
	Weights    *forward.Weights // the caller closes them
	Head       *Head            // nil where the model is no cross-encoder
}

// Open reads the folder dir.
func Open(dir string) (*Folder, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fault.Invalidf("encoder: open", "%w: name the folder of a model", err)
	} else if !info.IsDir() {
		return nil, fault.Invalidf("encoder: open", "%s is not a folder: name the folder of a model", dir)
	}
	p, err := readPipeline(dir)
	if err != nil {
		return nil, err
	}
	c, err := readConfig(dir, path.Join(p.transformer, "config.json"))
	if err != nil {
		return nil, err
	}
	if p.alone && c.score != 1 {
		return nil, refuse(fault.ErrUnsupported, "modules.json", "", "has the model alone, and by its %s it is no cross-encoder of one label: want a pooling behind it", c.file)
	}
	if p.raw != nil {
		c.raw = *p.raw
	}
	if err := p.readPooling(dir, c.width); err != nil {
		return nil, err
	}
	f := &Folder{pipeline: p, Tokenizer: filepath.Join(dir, filepath.FromSlash(p.transformer)), Width: c.width, Vocabulary: c.vocabulary, Positions: c.positions, Types: c.types}
	if err := f.load(c); err != nil {
		return nil, err
	}
	return f, nil
}

// formats are the files that may have the weights: the first that is there has them.
var formats = []struct {
	file string
	open func(path string) (*tensorfile.File, error)
}{{"model.safetensors", tensorfile.Open}, {"model.onnx", tensorfile.OpenONNX}, {"onnx/model.onnx", tensorfile.OpenONNX}}

// open opens the file of the weights.
func (f *Folder) open() (name string, file *tensorfile.File, err error) {
	for _, format := range formats {
		path := filepath.Join(f.Tokenizer, filepath.FromSlash(format.file))
		switch _, err := os.Stat(path); {
		case err == nil:
			file, err := format.open(path)
			return format.file, file, err
		case !errors.Is(err, fs.ErrNotExist):
			return "", nil, refuse(fault.ErrInvalid, format.file, "", "cannot be opened: %v", errors.Unwrap(err))
		}
	}
	name = formats[0].file
	if _, sharded := os.Stat(filepath.Join(f.Tokenizer, name+".index.json")); sharded == nil {
		return "", nil, refuse(fault.ErrUnsupported, name+".index.json", "", "says that the weights are in several files: save the model as one")
	}
	return "", nil, refuse(fault.ErrInvalid, name, "", "is missing, and so is model.onnx: weights in other formats are not read")
}

// load opens the weights.
func (f *Folder) load(c config) error {
	name, file, err := f.open()
	if err != nil {
		return err
	}
	n := names(file)
	// Before a list of all layers is made: a config may ask for many that are not there.
	if last := fmt.Sprintf("%sencoder.layer.%d.output.dense.weight", n.prefix, c.layers-1); !has(file, last) {
		err = refuse(fault.ErrInvalid, name, "", "has no tensor %q, though %s says %d layers", last, c.file, c.layers)
	} else if err = c.agrees(name, file.Nodes()); err != nil {
	} else if more := n.above(c.layers, file); more != "" {
		err = refuse(fault.ErrInvalid, name, "", "has the tensor %.200q, though %s says %d layers", more, c.file, c.layers)
	} else if err = f.head(c, n, name, file); err != nil {
	} else if f.List, err = c.list(filepath.Base(f.Tokenizer), n); err == nil {
		f.Weights, err = forward.WeightsOf(f.List, filepath.Join(f.Tokenizer, filepath.FromSlash(name)), file)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return nil
}

func has(file *tensorfile.File, name string) bool {
	_, ok := file.Tensor(name)
	return ok
}

// above gives the name of a tensor of a layer that a model of so many layers does not have; empty = none.
func (n naming) above(layers int, file *tensorfile.File) string {
	for _, name := range file.Names() {
		if in, ok := strings.CutPrefix(name, n.prefix+"encoder.layer."); ok {
			number, _, _ := strings.Cut(in, ".")
			if layer, err := strconv.Atoi(number); err == nil && layer >= layers {
				return name
			}
		}
	}
	return ""
}

// names looks how a file calls its tensors.
func names(file *tensorfile.File) naming {
	n := naming{scale: "weight", shift: "bias"}
	const norm = "embeddings.LayerNorm."
	for _, name := range file.Names() {
		switch strings.TrimPrefix(name, "bert.") {
		case norm + "gamma":
			n.scale, n.shift = "gamma", "beta"
			fallthrough
		case norm + "weight":
			n.prefix = strings.TrimSuffix(name[:len(name)-len(n.scale)], norm)
		}
	}
	return n
}
