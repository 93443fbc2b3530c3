package primitive

import (
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/ops"
	"github.com/kiln-cache/kiln/internal/canon"
)

// Of is the Spec of an operation of package ops: its dimensions and attributes
// are parameters, in the order in which ops has them. layout names the arrangement
// of a weight that was prepared, empty without one. stated is the operation as its
// model states it: two primitives stay two even where a backend makes one program
// of both. Where it is to run is left to be set.
func Of(op ops.Op, layout, stated string) Spec {
	s := Spec{Kind: op.Kind.String(), Op: Operation{Params: make([]Param, 0, len(op.Dims)+3)}}
	add := func(p Param) { s.Op.Params = append(s.Op.Params, p) }
	for i, name := range op.Kind.Dims() {
		add(Param{Name: name, Ints: op.Dims[i : i+1 : i+1]})
	}
	for _, f := range []struct {
		name  string
		value float32
	}{{"epsilon", op.Epsilon}, {"scale", op.Scale}} {
		if f.value != 0 {
			add(Param{Name: f.name, Floats: []float64{float64(f.value)}})
		}
	}
	for _, f := range []struct {
		name string
		set  bool
	}{{"bias", op.Bias}, {"bfloat16", op.BFloat16}, {"transpose_b", op.TransposeB}, {"mask_k", op.MaskK}} {
		if f.set {
			add(Param{Name: f.name})
		}
	}
	for _, f := range []struct{ name, text string }{{"layout", layout}, {"descriptor", stated}} {
		if f.text != "" {
			add(Param{Name: f.name, Text: f.text})
		}
	}
	return s
}

// Keys are the keys of the primitive that a backend of this identity makes: the one
// in an artefact cache, and the one in a store, which leaves out what the stored
// identity says (SPEC K4, P3). Errors as in Key.
func (s *Spec) Keys(backend string, id gpuexec.Identity) (cached, stored string, err error) {
	var buf [1024]byte
	enc, err := s.append(buf[:0], false)
	if err != nil {
		return "", "", err
	}
	stored = string(enc)
	if enc, err = s.append(buf[:0], true); err != nil {
		return "", "", err
	}
	sum := producer(&Config{Backend: backend, Identity: id}, 0)
	return string(canon.AppendString(enc, tagProducer, sum[:])), stored, nil
}

// Factors takes apart a key of this package (SPEC R2): each field by its path, and
// each parameter of the operation by its name. Any other key gives nil. It has the
// form of blobstore.Config.Factors.
func Factors(_, key string) map[string]string {
	fields, err := canon.Fields([]byte(key), schema)
	if err != nil || len(fields) < 2 || fields[0] != (canon.Field{Path: "format", Value: strconv.Itoa(format)}) || fields[1].Path != "kind" {
		return nil
	}
	factors := make(map[string]string)
	name := "" // of the parameter that the fields belong to
	for _, f := range fields {
		inside, isParam := strings.CutPrefix(f.Path, "op.params[")
		if _, part, _ := strings.Cut(inside, "]."); isParam {
			if part == "name" {
				name = f.Value
				if _, taken := factors[name]; taken { // by a field, or another parameter
					name = f.Path
				}
				factors[name] = ""
			} else if f.Value != "[]" && f.Value != `""` {
				factors[name] += strings.Trim(f.Value, "[]")
			}
			continue
		}
		factors[f.Path] = f.Value
	}
	return factors
}
