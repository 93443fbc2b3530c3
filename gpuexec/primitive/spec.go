package primitive

// Spec is what decides which primitive is made (SPEC K4). Lists that are nil
// and empty mean the same. A Spec may borrow the caller's data: making a key
// reads it once and keeps nothing of it.
type Spec struct {
	Kind       string // convolution, matmul, reorder ...; never empty
	Op         Operation
	Attr       Attributes
	Impl       int      // place among the valid implementations, 0 for the first (D1)
	Hints      []Tensor // memory descriptors of the forward primitive, in its order (D5)
	Engine     string   // cpu, gpu
	Runtime    string   // what the engine runs on: seq, threadpool, ocl, cuda ...
	Device     string   // stable id of the device; not in the form on disk
	Context    string   // two contexts of one device share nothing; not in the form on disk
	Threads    int      // where the primitive bakes their number in, else 0
	Skip       []int    // positions that implementations are not to be taken from; a set, in any order
	Scratchpad string   // whose the scratch memory is: library, user; empty = the backend's choice
	Inputs     []Input  // what else the build reads
}

// Operation is an operation descriptor: what is computed on which tensors.
type Operation struct {
	Direction string   // forward, inference, backward_data ...
	Algorithm string   // as asked for, auto included (D6)
	Params    []Param  // in the order that the kind defines
	Tensors   []Tensor // memory descriptors, in the order that the kind defines
}

// Param is one parameter of an operation, such as strides or an epsilon.
type Param struct {
	Name   string
	Ints   []int64
	Floats []float64
	Text   string
}

// Tensor is a memory descriptor. Strides count elements; without strides the
// layout is the backend's choice, which is another request than any layout.
type Tensor struct {
	Type    string // f32, bf16, s8 ...
	Dims    []int64
	Strides []int64
	Blocks  []Block // inner blocks of a blocked layout, outermost first
	Offset  int64   // of the first element
	Layout  string  // a layout that strides and blocks cannot say, in the backend's own bytes; else empty
}

// Block is one inner block of a blocked layout.
type Block struct {
	Dim  int
	Size int64
}

// Attributes change how an operation computes. Scales, zero points and
// roundings are one per argument; their order means nothing.
type Attributes struct {
	FPMath        string // strict, bf16, f16, tf32, any
	FPMathInts    bool   // the mode applies to integer operations too
	Accumulation  string // strict, relaxed, any, or a type
	Deterministic bool
	Scales        []Quant
	ZeroPoints    []Quant
	PostOps       []PostOp // in the order of execution
	Rounding      []Rounding
}

// Quant says how an argument is scaled, or shifted by its zero points; the values
// come at execution.
type Quant struct {
	Arg    string // src, weights, dst ...
	Mask   uint64 // bit i: one value for each index of dimension i
	Groups []int64
	Type   string
}

// PostOp is an operation fused behind another one. Fields that its kind does
// not have stay zero.
type PostOp struct {
	Kind      string // sum, eltwise, binary, prelu, convolution
	Algorithm string
	Alpha     float64
	Beta      float64
	Scale     float64 // of a sum or an eltwise; 0 means 1
	ZeroPoint int64
	Type      string
	Mask      uint64
	Source    Tensor
	Params    []Param
}

// Rounding says how an argument is rounded when it is made narrower.
type Rounding struct {
	Arg  string
	Mode string // environment, stochastic
}

// Input is a further input of the build, such as an included file or an option
// that reads one. Without a digest its content is unknown and the key is
// refused (SPEC K6).
type Input struct {
	Name   string
	Digest []byte
}
