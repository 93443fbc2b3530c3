package gpuexec

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// Code is a program in a language that a backend compiles. All that can change what
// is compiled is in it, by value, and so is in the key of its Source (SPEC K4, K6): a
// backend refuses what would read more, such as an option that names a folder.
type Code struct {
	Language string            // as the backend calls it, such as opencl.Language
	Text     string            // the program; bytes, where the language has no text
	Entry    string            // the name of the kernel within Text
	Options  []string          // of the compiler, in their order
	Defines  map[string]string // macros and their values
	Includes map[string]string // texts, by the names that Text includes them by
	// Constants are specialisation constants by their ids, each with as many bytes as
	// its type has, in this machine's order: BytesOf gives them.
	Constants map[uint32][]byte
	// Block is the size of the blocks of a launch that gives none, and the size that the
	// program is made ready for. A driver may compile more when it first sees a size of
	// blocks. So that the blob has that code, too, a backend may run the program once
	// after the compile was answered and before it takes the blob: one block of this
	// size, on buffers of zeros as large as Params say, with all numbers 0. A first
	// launch may wait for that run. Zero = each launch says its block, and only launches
	// run the program.
	Block Size
}

// Source gives the source of the code, with a key that is derived from all of it.
// params are what each launch gives. ErrInvalid without a language, text or entry, or
// for a size or parameter that cannot be.
func (c Code) Source(params ...Param) (Source, error) {
	const op = "executor: code"
	switch {
	case c.Language == "" || c.Text == "" || c.Entry == "":
		return Source{}, fault.Invalidf(op, "language %q, entry %q, a text of %d bytes: want all three", c.Language, c.Entry, len(c.Text))
	case slices.Min(c.Block[:]) < 0 || c.Block[0] == 0 && c.Block != Size{}:
		return Source{}, fault.Invalidf(op, "%s: blocks of %v items, want at least 1", c.Entry, c.Block)
	}
	if err := checkParams(op, c.Entry, params); err != nil {
		return Source{}, err
	}
	c.Options, c.Defines, c.Includes = slices.Clone(c.Options), maps.Clone(c.Defines), maps.Clone(c.Includes)
	c.Constants = maps.Clone(c.Constants)
	for id, value := range c.Constants {
		c.Constants[id] = slices.Clone(value)
	}
	params = slices.Clone(params)
	for i := range params {
		params[i].Times = slices.Clone(params[i].Times)
	}
	return Source{Key: c.key(params), Name: c.Entry, Spec: c, Params: params}, nil
}

// key is the language, the entry, and a digest over all that the code and its
// parameters are.
func (c Code) key(params []Param) string {
	b := canon.AppendString(nil, 1, c.Language)
	b = canon.AppendString(b, 2, c.Text)
	b = canon.AppendString(b, 3, c.Entry)
	b = canon.AppendGroup(b, 4, len(c.Options))
	for _, o := range c.Options {
		b = canon.AppendString(b, 1, o)
	}
	for tag, texts := range []map[string]string{c.Defines, c.Includes} {
		b = canon.AppendGroup(b, canon.Tag(5+tag), 2*len(texts))
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			b = canon.AppendString(canon.AppendString(b, 1, name), 2, texts[name])
		}
	}
	b = canon.AppendGroup(b, 7, 2*len(c.Constants))
	for _, id := range slices.Sorted(maps.Keys(c.Constants)) {
		b = canon.AppendString(canon.AppendUint(b, 1, uint64(id)), 2, c.Constants[id])
	}
	b = canon.AppendInts(b, 8, c.Block[:])
	b = canon.AppendGroup(b, 9, 2*len(params))
	for _, p := range params {
		b = canon.AppendInts(b, 1, []int64{int64(p.Kind), p.Bytes, int64(p.Align), p.Round})
		b = canon.AppendInts(b, 2, p.Times)
	}
	for i, p := range params { // where neither is said, keys are as they were before they could be
		if p.ReadOnly {
			b = canon.AppendInt(b, 10, int64(i))
		}
		if p.WriteOnly {
			b = canon.AppendInt(b, 11, int64(i))
		}
	}
	digest := sha256.Sum256(b)
	return c.Language + " " + c.Entry + " " + hex.EncodeToString(digest[:])
}
