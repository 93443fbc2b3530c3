package wasm

import "encoding/binary"

// Sections and other bytes of the binary format that modules of this package
// contain.
const (
	sectionType     = 1
	sectionImport   = 2
	sectionFunction = 3
	sectionMemory   = 5
	sectionExport   = 7
	sectionCode     = 10

	externFunc   = 0x00
	externMemory = 0x02
	typeFunc     = 0x60
)

// valueType is the binary format's code of a type.
type valueType byte

const (
	typeI32  valueType = 0x7f
	typeF32  valueType = 0x7d
	typeV128 valueType = 0x7b
)

// PageBytes is the unit of a memory's size.
const PageBytes = 1 << 16

// MaxPages is the most pages a memory of this package may have: one less than
// the format allows, because the size in bytes of a memory of 65536 pages is
// not a 32-bit number.
const MaxPages = 1<<16 - 1

// Module collects the parts of one WebAssembly module.
type Module struct {
	imported, defined *memory
	exportedMemory    string
	funcs             []*Func
}

type memory struct {
	module, name string
	min, max     uint32 // pages; max 0 is no limit
}

// NewModule returns an empty module.
func NewModule() *Module { return new(Module) }

// ImportMemory makes the module use a memory of at least min pages that another
// module exports.
func (m *Module) ImportMemory(module, name string, min uint32) {
	m.oneMemory()
	m.imported = &memory{module: module, name: name, min: min}
}

// DefineMemory gives the module a memory of exactly pages pages and exports it
// as name.
func (m *Module) DefineMemory(name string, pages uint32) {
	m.oneMemory()
	if pages > MaxPages {
		panic("wasm: a memory has at most MaxPages pages")
	}
	m.defined = &memory{min: pages, max: pages}
	m.exportedMemory = name
}

func (m *Module) oneMemory() {
	if m.imported != nil || m.defined != nil {
		panic("wasm: a module has one memory")
	}
}

// Func adds a function, exported as name, with params parameters of type i32
// and no result. The parameters are given as variables in their order.
func (m *Module) Func(name string, params int) (*Func, []Var[I32]) {
	f := &Func{name: name, params: params}
	vars := make([]Var[I32], params)
	for i := range vars {
		vars[i] = Var[I32]{f: f, index: uint32(i)}
	}
	m.funcs = append(m.funcs, f)
	return f, vars
}

// Encode gives the binary module.
func (m *Module) Encode() []byte {
	out := []byte{0, 'a', 's', 'm', 1, 0, 0, 0}
	out = section(out, sectionType, m.types())
	if m.imported != nil {
		body := uleb(nil, 1)
		body = text(body, m.imported.module)
		body = text(body, m.imported.name)
		body = append(body, externMemory)
		out = section(out, sectionImport, m.imported.limits(body))
	}
	if len(m.funcs) > 0 {
		body := uleb(nil, uint64(len(m.funcs)))
		for i := range m.funcs {
			body = uleb(body, uint64(i)) // each function has a type of its own
		}
		out = section(out, sectionFunction, body)
	}
	if m.defined != nil {
		out = section(out, sectionMemory, m.defined.limits(uleb(nil, 1)))
	}
	out = section(out, sectionExport, m.exports())
	if len(m.funcs) > 0 {
		body := uleb(nil, uint64(len(m.funcs)))
		for _, f := range m.funcs {
			code := f.encode()
			body = uleb(body, uint64(len(code)))
			body = append(body, code...)
		}
		out = section(out, sectionCode, body)
	}
	return out
}

func (m *Module) types() []byte {
	body := uleb(nil, uint64(len(m.funcs)))
	for _, f := range m.funcs {
		body = append(body, typeFunc)
		body = uleb(body, uint64(f.params))
		for range f.params {
			body = append(body, byte(typeI32))
		}
		body = uleb(body, 0)
	}
	return body
}

func (m *Module) exports() []byte {
	count := len(m.funcs)
	if m.defined != nil {
		count++
	}
	body := uleb(nil, uint64(count))
	if m.defined != nil {
		body = append(text(body, m.exportedMemory), externMemory, 0)
	}
	for i, f := range m.funcs {
		body = append(text(body, f.name), externFunc)
		body = uleb(body, uint64(i))
	}
	return body
}

func (mem *memory) limits(b []byte) []byte {
	if mem.max == 0 {
		return uleb(append(b, 0), uint64(mem.min))
	}
	return uleb(uleb(append(b, 1), uint64(mem.min)), uint64(mem.max))
}

func section(b []byte, id byte, body []byte) []byte {
	b = append(b, id)
	b = uleb(b, uint64(len(body)))
	return append(b, body...)
}

func text(b []byte, s string) []byte {
	b = uleb(b, uint64(len(s)))
	return append(b, s...)
}

// uleb appends v in unsigned LEB128.
func uleb(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }

// sleb appends v in signed LEB128.
func sleb(b []byte, v int64) []byte {
	for {
		low := byte(v & 0x7f)
		v >>= 7
		if v == 0 && low&0x40 == 0 || v == -1 && low&0x40 != 0 {
			return append(b, low)
		}
		b = append(b, low|0x80)
	}
}
