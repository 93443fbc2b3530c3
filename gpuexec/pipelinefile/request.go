package pipelinefile

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// Request asks for one pipeline: the SPIR-V, and everything that the driver
// makes another pipeline for.
type Request struct {
	// Shader is a registered one. With Words it is a name for messages only.
	Shader string
	// Words, if not nil, is the SPIR-V itself, in place of a registered shader.
	// Such a module is never stored.
	Words []uint32

	Entry     string     // the kernel's name in the module; empty = main
	Options   uint64     // option bits, for the front end and the driver
	Constants []Constant // specialisation constants, by ascending ID
	LocalSize [3]uint32  // 0 = as the module says
	Subgroup  uint32     // lanes; 0 = the device's choice

	// Linger takes the place of Config.Linger where it is not 0; the longest of all
	// callers of one build counts. It is no part of what is asked for.
	Linger time.Duration
}

// mainEntry is the name of a kernel that has none, as GLSL has it.
const mainEntry = "main"

// Constant is the value of one specialisation constant.
type Constant struct {
	ID    uint32
	Bytes uint8  // size of its type: 1, 2, 4 or 8; 0 = 4
	Value uint64 // its bits, in the lowest Bytes
}

func (k Constant) bytes() uint8 {
	if k.Bytes == 0 {
		return 4
	}
	return k.Bytes
}

func (r *Request) check(op string) error {
	switch {
	case r.Words == nil && r.Shader == "":
		return fault.Invalidf(op, "the request names no shader and has no words: want one of them")
	case r.Words != nil && len(r.Words) == 0:
		return fault.Invalidf(op, "the module is empty: want the words of a SPIR-V module")
	}
	if r.Linger < 0 {
		return fault.Invalidf(op, "linger %v: want 0 or more", r.Linger)
	}
	for i, k := range r.Constants {
		size := k.bytes()
		switch {
		case size != 1 && size != 2 && size != 4 && size != 8, size < 8 && k.Value>>(8*size) != 0:
			return fault.Invalidf(op, "constant %d: want 1, 2, 4 or 8 bytes, and a value that fits into them", k.ID)
		case i > 0 && r.Constants[i-1].ID >= k.ID:
			return fault.Invalidf(op, "constant %d: want the constants by ascending id, each once", k.ID)
		}
	}
	return nil
}

// Tags of a request's key.
const (
	tagShader canon.Tag = iota + 1
	tagSource
	tagWords
	tagOptions
	tagConstants
	tagLocalSize
	tagSubgroup
	tagEntry
)

// key is the canonical key (SPEC K1): a module given as words and one that a
// shader became never share one, whatever they contain.
func (r *Request) key(s *shader) string {
	b := make([]byte, 0, 256+4*len(r.Words))
	if s != nil {
		b = canon.AppendString(b, tagShader, r.Shader)
		b = canon.AppendString(b, tagSource, s.digest[:])
	} else {
		words := make([]byte, 0, 4*len(r.Words))
		for _, w := range r.Words {
			words = binary.LittleEndian.AppendUint32(words, w)
		}
		b = canon.AppendString(b, tagWords, words)
	}
	b = canon.AppendUint(b, tagOptions, r.Options)
	b = canon.AppendGroup(b, tagConstants, len(r.Constants))
	for _, k := range r.Constants {
		b = canon.AppendGroup(b, 0, 3)
		b = canon.AppendUint(b, 1, uint64(k.ID))
		b = canon.AppendUint(b, 2, uint64(k.bytes()))
		b = canon.AppendUint(b, 3, k.Value)
	}
	b = canon.AppendGroup(b, tagLocalSize, len(r.LocalSize))
	for _, n := range r.LocalSize {
		b = canon.AppendUint(b, 0, uint64(n))
	}
	b = canon.AppendUint(b, tagSubgroup, uint64(r.Subgroup))
	return string(canon.AppendString(b, tagEntry, cmp.Or(r.Entry, mainEntry)))
}

// module is what the driver gets: a copy, since the build may outlive the call.
func (r *Request) module() Module {
	return Module{
		Shader: r.Shader, Words: slices.Clone(r.Words), Entry: cmp.Or(r.Entry, mainEntry), Options: r.Options,
		Constants: slices.Clone(r.Constants), LocalSize: r.LocalSize, Subgroup: r.Subgroup,
	}
}
