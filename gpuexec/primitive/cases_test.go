package primitive_test

import (
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/gpuexec/artefacts"
	"github.com/kiln-cache/kiln/limit"
)

var (
	conv   = op{kind: "convolution", impls: 6, valid: []int{1, 3, 5}}
	simple = func(kind string) op { return op{kind: kind} }
)

// The cases of the conformance scripts, and some beside them. A line is a
// statement, optionally with "-> expectation".
var cases = []struct {
	name, rules string
	entries     limit.Limit
	ops         map[string]op
	script      string
}{
	{name: "D01", rules: "D1", ops: map[string]op{"conv": conv}, script: `
		list conv -> 1 3 5 end
		desc conv id=0 -> 1 id=0
		desc conv id=1 -> 3 id=1
		desc conv id=2 -> 5 id=2
		desc conv id=3 -> end`},
	{name: "D02", rules: "D1", ops: map[string]op{"conv": conv}, script: `
		primitive conv id=0 -> 1 by=miss
		list conv -> 1 3 5 end
		primitive conv id=1 -> 3 by=miss
		list conv -> 1 3 5 end
		list conv -> 1 3 5 end
		primitive conv id=2 -> 5 by=miss
		list conv -> 1 3 5 end
		builds -> 3`},
	{name: "D03", rules: "D1", ops: map[string]op{"ip": {kind: "inner_product", impls: 3, valid: []int{2}}}, script: `
		desc ip id=0 -> 2
		desc ip id=1 -> end
		desc ip id=1 -> end
		desc ip id=1 -> end
		desc ip id=7 -> end
		desc ip id=0 -> 2
		primitive ip id=1 -> end
		primitive ip id=1 -> end
		desc ip id=-1 -> error invalid
		primitive ip id=-1 -> error invalid`},
	{name: "D04", rules: "D1", ops: map[string]op{"conv": conv}, script: `
		list conv skip=1 -> 3 5 end
		list conv skip=1,5 -> 3 end
		list conv skip=1,3,5 -> end
		list conv skip=0,2,9 -> 1 3 5 end
		primitive conv id=0 skip=1 -> 3 by=miss
		primitive conv id=0 -> 1 by=miss
		primitive conv id=0 skip=1 -> 3 by=hit
		list conv -> 1 3 5 end
		list conv skip=1 -> 3 5 end
		desc conv id=0 skip=1 -> 3 id=0 by=hit shared=yes`},
	{name: "D05", rules: "D1", ops: map[string]op{"none": {kind: "convolution", impls: 4, valid: []int{}}}, script: `
		list none -> end
		desc none -> end
		primitive none -> end
		builds -> 0
		len -> 0`},
	{name: "D06", rules: "D2", ops: map[string]op{"conv": {kind: "convolution", impls: 4, valid: []int{2}}, "other": {kind: "convolution", impls: 4, valid: []int{3}}}, script: `
		primitive conv -> 2 by=miss
		builds -> 1
		desc conv -> 2 by=hit shared=yes
		builds -> 1
		desc other -> 3 by=miss shared=no`},
	{name: "D07", rules: "D3", ops: map[string]op{"bn": {kind: "batch_norm", impls: 2}}, script: `
		desc bn -> 0 by=miss shared=no
		desc bn -> 0 by=hit shared=no
		builds -> 1
		primitive bn -> 0 by=miss
		builds -> 1
		desc bn -> 0 by=hit shared=yes
		desc bn id=1 -> 1 by=miss
		builds -> 2`},
	{name: "D08", rules: "D4", ops: map[string]op{"s": simple("sum"), "x": simple("concat"), "r": simple("reorder"), "many": {kind: "concat", impls: 4, valid: []int{1, 2}}}, script: `
		list s -> 0 end
		desc s id=1 -> end
		primitive s -> 0 by=miss
		primitive s -> 0 by=hit
		desc s -> 0 by=hit shared=yes
		list x -> 0 end
		desc x id=1 -> end
		primitive x -> 0 by=miss
		primitive x -> 0 by=hit
		desc x -> 0 by=hit shared=yes
		list r -> 0 end
		desc r id=1 -> end
		primitive r -> 0 by=miss
		primitive r -> 0 by=hit
		desc r -> 0 by=hit shared=yes
		list many -> 1 end
		desc many id=1 -> end
		primitive many id=1 -> end
		desc many skip=1 -> 2 id=0`},
	{name: "D10", rules: "D5", ops: map[string]op{"fwd": {kind: "pooling", dir: "forward"}, "bwd": {kind: "pooling", dir: "backward"}, "data": {kind: "shuffle", dir: "backward_data"}}, script: `
		primitive bwd hint=u8 -> 0 by=miss
		primitive bwd hint=s32 -> 0 by=miss
		primitive bwd hint=u8 -> 0 by=hit
		primitive bwd hint=s32 -> 0 by=hit
		desc bwd hint=s32 -> 0 by=hit shared=yes
		desc bwd -> 0 by=miss
		primitive fwd hint=u8 -> 0 by=miss
		primitive fwd hint=s32 -> 0 by=hit
		primitive fwd -> 0 by=hit
		desc fwd hint=f16 -> 0 by=hit shared=yes
		desc data hint=u8 -> 0 by=miss
		desc data hint=s8 -> 0 by=miss
		desc data hint=u8 -> 0 by=hit`},
	{name: "D11", rules: "D6", ops: map[string]op{"conv": {kind: "convolution", alg: "auto", resolves: "winograd", impls: 3}, "direct": {kind: "convolution", alg: "winograd", impls: 3}}, script: `
		primitive conv -> 0 by=miss
		desc conv -> 0 by=hit shared=yes alg=winograd
		primitive conv -> 0 by=hit
		builds -> 1
		desc direct -> 0 by=miss alg=winograd
		desc conv id=1 -> 1 by=miss alg=winograd
		desc conv id=1 -> 1 by=hit alg=winograd`},
	{name: "D13", rules: "D2,C3", entries: limit.Of(2), ops: map[string]op{"conv": simple("convolution"), "ip": simple("inner_product"), "mm": simple("matmul")}, script: `
		primitive conv
		primitive ip
		desc conv -> 0 by=hit shared=yes
		primitive mm
		primitive conv -> 0 by=hit
		primitive ip -> 0 by=miss`},
	{name: "recency of a descriptor alone", rules: "D3,C3", entries: limit.Of(2), ops: map[string]op{"a": simple("matmul"), "b": simple("sum"), "c": simple("softmax")}, script: `
		desc a -> 0 by=miss
		desc b -> 0 by=miss
		desc a -> 0 by=hit
		desc c -> 0 by=miss
		len -> 2
		desc a -> 0 by=hit
		desc b -> 0 by=miss`},
	{name: "the primitive goes", rules: "D2,C2", entries: limit.Of(1), ops: map[string]op{"a": simple("matmul"), "b": simple("sum")}, script: `
		primitive a -> 0 by=miss
		primitive b -> 0 by=miss
		desc a -> 0 by=miss shared=no
		desc a -> 0 by=hit shared=no
		builds -> 3`},
	{name: "a primitive takes the place of its descriptor", rules: "D3,F9", entries: limit.Of(1), ops: map[string]op{"a": simple("matmul")}, script: `
		desc a -> 0 by=miss
		primitive a -> 0 by=miss
		builds -> 1
		len -> 1
		desc a -> 0 by=hit shared=yes
		primitive a -> 0 by=hit`},
	{name: "descriptors first, and as many primitives as there are entries", rules: "D3,C1", entries: limit.Of(3), ops: map[string]op{"a": {kind: "matmul", impls: 3}}, script: `
		desc a id=0 -> 0 by=miss
		desc a id=1 -> 1 by=miss
		desc a id=2 -> 2 by=miss
		primitive a id=0 -> 0 by=miss
		primitive a id=1 -> 1 by=miss
		primitive a id=2 -> 2 by=miss
		len -> 3
		primitive a id=0 -> 0 by=hit
		primitive a id=1 -> 1 by=hit
		primitive a id=2 -> 2 by=hit
		builds -> 3`},
	{name: "no capacity", rules: "C1,D3", entries: limit.Of(0), ops: map[string]op{"a": {kind: "matmul", impls: 2}}, script: `
		desc a -> 0 by=miss shared=no
		desc a -> 0 by=miss shared=no
		primitive a -> 0 by=miss
		list a -> 0 1 end
		len -> 0`},
	{name: "a request that is wrong", rules: "F2", ops: nil, script: `
		desc nothing -> error invalid
		primitive nothing -> error invalid`},
}

func TestCases(t *testing.T) { // D1-D6, C1-C3
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := openWith(t, artefacts.Config{Entries: c.entries, Hash: func(string) uint64 { return 7 }}, c.ops) // K2
			for line := range strings.Lines(c.script) {
				statement, want, judged := strings.Cut(strings.TrimSpace(line), " -> ")
				if statement == "" {
					continue
				}
				if got := r.say(statement); judged && !agrees(got, want) {
					t.Errorf("%s: got %s, want %s", statement, got, want)
				} else if !judged && strings.HasPrefix(got, "error") {
					t.Errorf("%s: %s", statement, got)
				}
			}
		})
	}
}
