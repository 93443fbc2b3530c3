package oplist

// Kind is what an operation computes; doc.go has the table.
type Kind string

// The kinds of an encoder's forward pass.
const (
	Gather      Kind = "gather"
	Add         Kind = "add"
	LayerNorm   Kind = "layernorm"
	MatMul      Kind = "matmul"
	Reorder     Kind = "reorder"
	BatchMatMul Kind = "batch_matmul"
	Softmax     Kind = "softmax"
	Eltwise     Kind = "eltwise"
	Slice       Kind = "slice"
	Attention   Kind = "attention" // in packed lists alone
)

// Role is what a weight is to its operation.
type Role string

// The roles of the weights of the kinds above.
const (
	Table    Role = "table"    // rows looked up by token or token type id
	Position Role = "position" // rows added by place
	Kernel   Role = "kernel"   // [inputs, outputs] of a matmul
	Bias     Role = "bias"
	Gamma    Role = "gamma"
	Beta     Role = "beta"
)

// Source is where an operation's input comes from: the index of the operation
// that wrote it, or one of the request's own inputs.
type Source int

// The request's own inputs.
const (
	Tokens     Source = -1 - iota // ids, one per token: [B,S] int32
	TokenTypes                    // segment ids; 0 in a request of one text: [B,S] int32
	Lengths                       // tokens of each batch row that are not padding: [B] int32
	Positions                     // of each token in its request: [B,S] int32; in packed lists
	Starts                        // where each request begins, and where the last ends: int32; in packed lists
)

// Weight is one parameter tensor of the model, float32, row major.
type Weight struct {
	Name  string
	Shape []int // each at least 1
	Role  Role
}

// Elements is the number of float32 values.
func (w Weight) Elements() int {
	n := 1
	for _, d := range w.Shape {
		n *= d // Parse has bounded the product
	}
	return n
}

// Attr is an operation's attribute, parsed. What a kind does not have is zero.
type Attr struct {
	Text  string  // as written; part of a primitive's identity
	Perm  []int   // reorder
	Scale float32 // batch_matmul: 1 unless given
	Mask  bool    // batch_matmul: post:mask_add
	Eps   float64 // layernorm
	Alg   string  // eltwise: "gelu" or "tanh"
}

// Op is one operation of the list, with symbolic dims.
type Op struct {
	Line    int // in the file, from 1
	Kind    Kind
	Name    string
	Src     [][]Dim
	Dst     []Dim
	Weights []Weight
	Attr    Attr

	Inputs     []Source // one per Src; and Lengths behind them where columns are masked
	TransposeB bool     // batch_matmul: the second operand's last two dims are read swapped
	Releases   []int    // operations whose output no later operation reads
}

// Model is a parsed list with its data flow resolved.
type Model struct {
	Name    string
	File    string // as given to Parse; errors name it
	Ops     []Op
	Weights []Weight          // each once, in order of first use
	Symbols map[string]string // name and meaning
	// WeightsFile is the safetensors file beside the list, empty where the list
	// names none.
	WeightsFile string

	BatchSymbol  string // the dim that counts requests
	LengthSymbol string // the dim that counts tokens of one request, padding included
	Vocab        int    // rows of the token table
	Types        int    // rows of the table of token types
	MaxTokens    int    // rows of the position table: no request may be longer
	Width        int    // elements of one output row: the output is [B, Width] or [B*S, Width]
	Ragged       bool   // Packed gave it
	PerToken     bool   // the output has a row for every token, not one for every request
}

// Params is the number of weight elements.
func (m *Model) Params() int {
	n := 0
	for _, w := range m.Weights {
		n += w.Elements()
	}
	return n
}

// Distinct counts the primitives that one shape needs: operations that agree
// in kind, dims, weight shapes and attributes are one.
func (m *Model) Distinct() int {
	seen := map[string]bool{}
	for i := range m.Ops {
		op := &m.Ops[i]
		seen[op.Identity()] = true
	}
	return len(seen)
}
