package oplist

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// defaultEps is the layer norm's epsilon of google-research/bert.
const defaultEps = 1e-12

// attrKeys are the attributes each kind may have; what is not here has none.
var attrKeys = map[Kind]string{
	LayerNorm:   "eps",
	Reorder:     "perm",
	BatchMatMul: "scale post",
	Softmax:     "axis",
	Eltwise:     "alg",
}

// parseAttr reads "key:value;key:value" for an operation of this kind.
func parseAttr(kind Kind, text string, rank int) (Attr, error) {
	a := Attr{Text: text}
	switch kind {
	case BatchMatMul:
		a.Scale = 1
	case LayerNorm:
		a.Eps = defaultEps
	}
	given := map[string]bool{}
	if text != "" {
		for part := range strings.SplitSeq(text, ";") {
			key, value, ok := strings.Cut(part, ":")
			if !ok || given[key] || !strings.Contains(" "+attrKeys[kind]+" ", " "+key+" ") {
				return Attr{}, fmt.Errorf("%q is not an attribute of %s here; %s", part, kind, allowed(kind))
			}
			given[key] = true
			if err := a.set(key, value, rank); err != nil {
				return Attr{}, err
			}
		}
	}
	switch {
	case kind == Reorder && !given["perm"]:
		return Attr{}, fmt.Errorf("a reorder needs its permutation, such as perm:0213")
	case kind == Softmax && !given["axis"]:
		return Attr{}, fmt.Errorf("a softmax needs axis:%d, its last dim", rank-1)
	case kind == Eltwise && !given["alg"]:
		return Attr{}, fmt.Errorf("an eltwise needs alg:gelu or alg:tanh")
	}
	return a, nil
}

func allowed(kind Kind) string {
	if keys := attrKeys[kind]; keys != "" {
		return "it may have, once each and joined by a semicolon: " + keys
	}
	return "it has none"
}

func (a *Attr) set(key, value string, rank int) error {
	switch key {
	case "eps":
		eps, err := strconv.ParseFloat(value, 64)
		if err != nil || !(eps > 0 && eps < 1) {
			return fmt.Errorf("eps %q is not a number between 0 and 1", value)
		}
		a.Eps = eps
	case "perm":
		perm, err := parsePerm(value, rank)
		if err != nil {
			return err
		}
		a.Perm = perm
	case "scale":
		f, err := strconv.ParseFloat(value, 32)
		if err != nil || f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
			return fmt.Errorf("scale %q is not a finite number other than 0", value)
		}
		a.Scale = float32(f)
	case "post":
		if value != "mask_add" {
			return fmt.Errorf("post %q is not known; an encoder's scores have post:mask_add", value)
		}
		a.Mask = true
	case "axis":
		if value != strconv.Itoa(rank-1) {
			return fmt.Errorf("axis %q is not the last dim of a source of %d dims; axis:%d is", value, rank, rank-1)
		}
	case "alg":
		if value != "gelu" && value != "tanh" {
			return fmt.Errorf("alg %q is not known; there are gelu (the exact one) and tanh", value)
		}
		a.Alg = value
	}
	return nil
}

// parsePerm reads one digit per dim, each dim once.
func parsePerm(text string, rank int) ([]int, error) {
	perm := make([]int, 0, maxRank)
	for _, c := range []byte(text) {
		if d := int(c) - '0'; d >= 0 && d < rank && !slices.Contains(perm, d) {
			perm = append(perm, d)
		}
	}
	if len(perm) != rank || len(text) != rank {
		return nil, fmt.Errorf("perm %q does not hold each of the %d dims of the source once, as in perm:0213", text, rank)
	}
	return perm, nil
}
