// Package spirv reads what a SPIR-V module says of its compute kernel: which buffers
// it takes, how many bytes of push constants, which specialisation constants there
// are and how large its groups are. It checks the module's form (magic number, sizes
// of instructions, ids in bounds) as far as it reads it; whether the module is valid
// is for spirv-val to say.
//
// Numbers are those of the SPIR-V specification, version 1.6. Functions are safe for
// concurrent use.
package spirv

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// Module is what a pipeline has to know of a module.
type Module struct {
	Bindings    []Binding // by number
	PushBytes   uint32    // of the push constant block; 0: none
	SharedBytes uint64    // of memory that a group shares

	// Constants are the bytes of each specialisation constant's type, by id; a boolean
	// counts as 4.
	Constants map[uint32]uint8
	// LocalSize is the size of a group as the module gives it, and LocalIDs the ids of
	// the constants that change it; NoID: nothing does.
	LocalSize [3]uint32
	LocalIDs  [3]uint32
}

// NoID stands for no specialisation constant.
const NoID = math.MaxUint32

// Binding is a buffer in descriptor set 0.
type Binding struct {
	Number   uint32
	Uniform  bool // a uniform buffer
	Texels   bool // a texel buffer that is read as vectors of 4 float32; else a storage buffer
	ReadOnly bool // the module does not write it
}

// Limits of what is read.
const (
	mostWords = 1 << 24 // 64 MiB
	mostIDs   = 1 << 20
)

// Words turns the bytes of a module, in either order, to words. ErrInvalid.
func Words(module []byte) ([]uint32, error) {
	if len(module)%4 != 0 || len(module) < 20 || len(module)/4 > mostWords {
		return nil, invalid("%d bytes: want a SPIR-V module, in words of 4 bytes", len(module))
	}
	var order binary.ByteOrder = binary.LittleEndian
	if order.Uint32(module) != magic {
		order = binary.BigEndian
	}
	words := make([]uint32, len(module)/4)
	for i := range words {
		words[i] = order.Uint32(module[4*i:])
	}
	if words[0] != magic {
		return nil, invalid("it begins with %08x, not with the magic number of SPIR-V", words[0])
	}
	return words, nil
}

const magic = 0x07230203

func invalid(format string, args ...any) error {
	return fault.Invalidf("vulkan: module", format, args...)
}

// Opcodes and enumerants that are read.
const (
	opEntryPoint            = 15
	opExecutionMode         = 16
	opTypeBool              = 20
	opTypeInt               = 21
	opTypeFloat             = 22
	opTypeVector            = 23
	opTypeMatrix            = 24
	opTypeImage             = 25
	opTypeArray             = 28
	opTypeStruct            = 30
	opTypePointer           = 32
	opConstant              = 43
	opConstantComposite     = 44
	opSpecConstantTrue      = 48
	opSpecConstantFalse     = 49
	opSpecConstant          = 50
	opSpecConstantComposite = 51
	opFunction              = 54
	opFunctionEnd           = 56
	opFunctionCall          = 57
	opVariable              = 59
	opDecorate              = 71
	opMemberDecorate        = 72
	opExecutionModeID       = 331

	modelGLCompute = 5

	modeLocalSize   = 17
	modeLocalSizeID = 38

	decorationSpecID       = 1
	decorationBufferBlock  = 3
	decorationArrayStride  = 6
	decorationMatrixStride = 7
	decorationBuiltIn      = 11
	decorationNonWritable  = 24
	decorationBinding      = 33
	decorationSet          = 34
	decorationOffset       = 35

	builtInWorkgroupSize = 25

	storageUniformConstant = 0
	storageUniform         = 2
	storageWorkgroup       = 4
	storagePush            = 9
	storageBuffer          = 12
)

// operands are how many words each instruction has at least behind its first.
var operands = map[uint32]int{
	opEntryPoint: 3, opExecutionMode: 2, opExecutionModeID: 2, opDecorate: 2, opMemberDecorate: 3,
	opTypeBool: 1, opTypeInt: 3, opTypeFloat: 2, opTypeVector: 3, opTypeMatrix: 3, opTypeImage: 8, opTypeArray: 3, opTypeStruct: 1, opTypePointer: 3,
	opConstant: 3, opConstantComposite: 2, opSpecConstantTrue: 2, opSpecConstantFalse: 2, opSpecConstant: 3, opSpecConstantComposite: 2,
	opFunction: 4, opFunctionCall: 3, opVariable: 3,
}

// reader goes once over a module and keeps what may matter.
type reader struct {
	ids      uint32
	entry    uint32              // of the kernel
	entries  []string            // that it has
	of       map[uint32]instruct // types, constants and variables by their result
	decor    map[uint32]map[uint32]uint32
	members  map[[2]uint32]map[uint32]uint32 // decorations of a struct's members
	vars     []uint32
	size     [3]uint32 // the sizes of a group, or the ids of constants
	sizeIDs  bool
	sizeFrom uint32 // the constant that is WorkgroupSize

	functions map[uint32]bool // defined
	calls     []uint32        // of functions
	last      uint32          // instruction

	given map[uint32]uint64 // values of specialisation constants
	sizes map[uint32]uint64 // of types that were looked at
}

type instruct struct {
	op   uint32
	args []uint32 // behind the result
}

// Read reads the kernel of a name. ErrInvalid for what is no module or has no such
// kernel, ErrUnsupported for one that takes something else than buffers in set 0.
//
// constants are the values that specialisation constants are given, by id.
func Read(words []uint32, entry string, constants map[uint32]uint64) (*Module, error) {
	r := &reader{given: constants, sizes: map[uint32]uint64{}, of: map[uint32]instruct{}, decor: map[uint32]map[uint32]uint32{}, members: map[[2]uint32]map[uint32]uint32{}, functions: map[uint32]bool{}}
	if len(words) < 5 || len(words) > mostWords || words[0] != magic {
		return nil, invalid("%d words: want a SPIR-V module", len(words))
	}
	if r.ids = words[3]; r.ids > mostIDs {
		return nil, invalid("%d ids, at most %d are read", r.ids, mostIDs)
	}
	for at := 5; at < len(words); {
		n := int(words[at] >> 16)
		if n == 0 || n > len(words)-at {
			return nil, invalid("the instruction at word %d has %d words, there are %d: was the module cut?", at, n, len(words)-at)
		}
		if err := r.take(words[at]&0xffff, words[at+1:at+n], entry); err != nil {
			return nil, err
		}
		at += n
	}
	if r.entry == 0 {
		return nil, invalid("no compute kernel %q: it has %q", entry, r.entries)
	}
	for _, f := range append(r.calls, r.entry) { // drivers crash on what is missing
		if !r.functions[f] || r.last != opFunctionEnd {
			return nil, invalid("function %d is missing or has no end: was the module cut?", f)
		}
	}
	return r.module()
}

// take notes one instruction.
func (r *reader) take(op uint32, args []uint32, entry string) error {
	r.last = op
	least, ok := operands[op]
	if !ok {
		return nil
	}
	if len(args) < least {
		return invalid("an instruction %d of %d words, want %d at least", op, len(args)+1, least+1)
	}
	switch op {
	case opEntryPoint:
		if args[0] != modelGLCompute {
			return nil
		}
		name := text(args[2:])
		if r.entries = append(r.entries, name); name == entry {
			r.entry = args[1]
		}
	case opExecutionMode, opExecutionModeID:
		if args[0] == r.entry && len(args) == 5 && (args[1] == modeLocalSize || args[1] == modeLocalSizeID) {
			r.size, r.sizeIDs = [3]uint32(args[2:5]), args[1] == modeLocalSizeID
		}
	case opDecorate:
		note(r.decor, args[0], args[1:])
		if args[1] == decorationBuiltIn && len(args) > 2 && args[2] == builtInWorkgroupSize {
			r.sizeFrom = args[0]
		}
	case opFunction:
		r.functions[args[1]] = true
	case opFunctionCall:
		r.calls = append(r.calls, args[2])
	case opMemberDecorate:
		note(r.members, [2]uint32{args[0], args[1]}, args[2:])
	case opTypeBool, opTypeInt, opTypeFloat, opTypeVector, opTypeMatrix, opTypeImage, opTypeArray, opTypeStruct, opTypePointer:
		return r.define(args[0], instruct{op, args[1:]})
	default: // the type comes first, then the result
		if err := r.define(args[1], instruct{op, append([]uint32{args[0]}, args[2:]...)}); err != nil {
			return err
		}
		if op == opVariable {
			r.vars = append(r.vars, args[1])
		}
	}
	return nil
}

func (r *reader) define(id uint32, i instruct) error {
	if _, twice := r.of[id]; twice {
		return invalid("id %d is defined twice", id)
	}
	r.of[id] = i
	return nil
}

// note keeps a decoration; one without a value has 0.
func note[K comparable](into map[K]map[uint32]uint32, of K, args []uint32) {
	if into[of] == nil {
		into[of] = map[uint32]uint32{}
	}
	value := uint32(0)
	if len(args) > 1 {
		value = args[1]
	}
	into[of][args[0]] = value
}

// text is a string of SPIR-V: bytes from the low ones up, a zero at the end.
func text(words []uint32) string {
	var b []byte
	for _, w := range words {
		for i := range 4 {
			c := byte(w >> (8 * i))
			if c == 0 {
				return string(b)
			}
			b = append(b, c)
		}
	}
	return string(b)
}

// module is what the notes say together.
func (r *reader) module() (*Module, error) {
	m := &Module{Constants: map[uint32]uint8{}}
	for id, i := range r.of {
		spec, is := r.decor[id][decorationSpecID]
		if !is {
			continue
		}
		switch i.op {
		case opSpecConstantTrue, opSpecConstantFalse:
			m.Constants[spec] = 4
		case opSpecConstant:
			m.Constants[spec] = uint8(min(r.bytes(i.args[0], nil, 0), 8))
		}
	}
	for _, v := range r.vars {
		if err := r.variable(m, v); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(m.Bindings, func(a, b Binding) int { return cmp.Compare(a.Number, b.Number) })
	for i := 1; i < len(m.Bindings); i++ {
		if m.Bindings[i].Number == m.Bindings[i-1].Number {
			return nil, unsupported("two buffers share binding %d", m.Bindings[i].Number)
		}
	}
	r.localSize(m)
	for i, n := range m.LocalSize {
		if n == 0 {
			return nil, invalid("its groups have no size in dimension %d", i)
		}
	}
	return m, nil
}

func unsupported(format string, args ...any) error {
	return &fault.Error{Op: "vulkan: module", Err: fmt.Errorf("%w: "+format, append([]any{fault.ErrUnsupported}, args...)...)}
}

// variable notes a buffer or the push constants.
func (r *reader) variable(m *Module, id uint32) error {
	pointer := r.of[r.of[id].args[0]]
	if pointer.op != opTypePointer {
		return invalid("variable %d is of type %d, which is no pointer", id, r.of[id].args[0])
	}
	class, to := pointer.args[0], pointer.args[1]
	switch class {
	case storagePush:
		m.PushBytes = max(m.PushBytes, uint32(min(r.bytes(to, nil, 0), math.MaxInt32)))
	case storageBuffer, storageUniform:
		if r.of[to].op != opTypeStruct {
			return unsupported("variable %d is an array of buffers: give each buffer a binding", id)
		}
		_, storage := r.decor[to][decorationBufferBlock]
		uniform := class == storageUniform && !storage
		return r.bind(m, id, Binding{Uniform: uniform, ReadOnly: uniform || r.readOnly(id, to)})
	case storageWorkgroup:
		m.SharedBytes = min(m.SharedBytes+r.bytes(to, nil, 0), most)
	case storageUniformConstant:
		if !r.texels(to) {
			return unsupported("variable %d is an image or a sampler: want storage, uniform and texel buffers (textureBuffer)", id)
		}
		return r.bind(m, id, Binding{Texels: true, ReadOnly: true})
	}
	return nil
}

// readOnly reports whether a variable, or each member of the struct that it is, is
// declared so.
func (r *reader) readOnly(id, of uint32) bool {
	if _, whole := r.decor[id][decorationNonWritable]; whole {
		return true
	}
	for i := range r.of[of].args {
		if _, is := r.members[[2]uint32{of, uint32(i)}][decorationNonWritable]; !is {
			return false
		}
	}
	return true
}

// texels reports whether a type is a textureBuffer: vectors of 4 float32, read only.
func (r *reader) texels(id uint32) bool {
	const buffer, sampled = 5, 1
	t := r.of[id]
	if t.op != opTypeImage || t.args[1] != buffer || t.args[5] != sampled {
		return false
	}
	of := r.of[t.args[0]]
	return of.op == opTypeFloat && of.args[0] == 32
}

// bind notes a buffer at the binding that its variable has.
func (r *reader) bind(m *Module, id uint32, b Binding) error {
	if set := r.decor[id][decorationSet]; set != 0 {
		return unsupported("a buffer in descriptor set %d: want all in set 0", set)
	}
	var bound bool
	if b.Number, bound = r.decor[id][decorationBinding]; !bound {
		return invalid("buffer %d has no binding", id)
	}
	m.Bindings = append(m.Bindings, b)
	return nil
}

const (
	deepest = 64      // types within each other
	most    = 1 << 40 // bytes: more are as many
)

// bytes is how many bytes a type has; decorations are those of the member that has the
// type. Each type is looked at once, but for matrices.
func (r *reader) bytes(id uint32, member map[uint32]uint32, depth int) (n uint64) {
	t := r.of[id]
	if n, known := r.sizes[id]; known || depth > deepest {
		return n
	}
	if t.op != opTypeMatrix {
		r.sizes[id] = 0 // of one that contains itself
		defer func() { r.sizes[id] = n }()
	}
	switch t.op {
	case opTypeBool:
		return 4
	case opTypeInt, opTypeFloat:
		return uint64(t.args[0]) / 8
	case opTypeVector:
		return times(uint64(t.args[1]), r.bytes(t.args[0], nil, depth+1))
	case opTypeMatrix:
		stride, given := member[decorationMatrixStride]
		if !given {
			return times(uint64(t.args[1]), r.bytes(t.args[0], nil, depth+1))
		}
		return times(uint64(t.args[1]), uint64(stride))
	case opTypeArray:
		stride, given := r.decor[id][decorationArrayStride]
		if !given {
			return times(r.value(t.args[1]), r.bytes(t.args[0], nil, depth+1))
		}
		return times(r.value(t.args[1]), uint64(stride))
	case opTypeStruct:
		end := uint64(0)
		for i, m := range t.args {
			d := r.members[[2]uint32{id, uint32(i)}]
			at, given := d[decorationOffset]
			if !given {
				at = uint32(min(end, most>>10))
			}
			end = max(end, min(uint64(at)+r.bytes(m, d, depth+1), most))
		}
		return end
	}
	return 0
}

// times is a product, at most as large as any is.
func times(a, b uint64) uint64 {
	if hi, lo := bits.Mul64(a, b); hi == 0 && lo < most {
		return lo
	}
	return most
}

// value is that of a constant of up to 32 bits, as it was given or as the module says.
func (r *reader) value(id uint32) uint64 {
	c := r.of[id]
	if c.op != opConstant && c.op != opSpecConstant {
		return 0
	}
	if spec, is := r.decor[id][decorationSpecID]; is {
		if v, given := r.given[spec]; given {
			return v
		}
	}
	return uint64(c.args[1])
}

// localSize finds the size of a group: the constant that is WorkgroupSize has
// precedence, then the mode of the kernel.
func (r *reader) localSize(m *Module) {
	m.LocalSize, m.LocalIDs = r.size, [3]uint32{NoID, NoID, NoID}
	from := r.size[:]
	if whole := r.of[r.sizeFrom]; len(whole.args) == 4 && (whole.op == opConstantComposite || whole.op == opSpecConstantComposite) {
		from = whole.args[1:]
	} else if !r.sizeIDs {
		return
	}
	for i, id := range from {
		c := r.of[id]
		m.LocalSize[i] = uint32(min(r.value(id), math.MaxUint32))
		if spec, is := r.decor[id][decorationSpecID]; is && c.op == opSpecConstant {
			m.LocalIDs[i] = spec
		}
	}
}
