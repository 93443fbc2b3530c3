// Package oplist reads what one forward pass of a transformer encoder asks for:
// a list of operations with their shapes and weights, in the order they run.
//
// # Format
//
// A list is JSON lines, at most 16 MiB. The first line is the header: model,
// licence and structure_from as text, dtype ("f32"), symbols (an object: name
// and meaning of each symbol), ops (the number of lines that follow) and, where
// they are given, the totals params, weight_tensors, weight_bytes,
// ops_depending_on_shape and distinct_primitives_per_shape, which are then
// checked. A header may name in weights a safetensors file beside the list.
//
// Every further line is one operation: i (its place, from 0), kind, name
// (unique), src (the dims of each input), dst (the dims of the output), and
// where it has them weights (name, shape, bytes each), weight_bytes and attr. A
// dim is a positive number or an expression of numbers, symbols, + and *, such
// as "B*S" or "P+1". A field that is unknown, missing, twice there or at odds
// with another one is an *Error that names the file, the line and the field.
//
// # What each kind computes
//
// All values are dense, row major and float32. A reader may see the same
// elements under other dims: B*S x 384 is B x S x 12 x 32.
//
//	kind          inputs           weights         attr              dst
//	gather        Tokens           [V,H]           -                 dst[b,s,:] = W[id[b,s],:]
//	gather (2nd)  TokenTypes       [T,H]           -                 dst[b,s,:] = W[type[b,s],:]
//	add           x, y             -               -                 x + y
//	add           x                [P,H]           -                 dst[b,s,:] = x[b,s,:] + W[s,:]; S is at most P
//	layernorm     x                gamma, beta     eps:E (1e-12)     (x - mean) / sqrt(var + E) * gamma + beta over the last dim, var = mean((x-mean)^2)
//	matmul        x [M,K]          [K,N], bias [N] -                 x W + bias; the bias may be absent
//	reorder       x                -               perm:DIGITS       dim d of dst is dim perm[d] of x
//	batch_matmul  x [..,M,K], y    -               scale:F           F * x y, or F * x y^T with TransposeB; F is 1 unless given
//	                                               post:mask_add     column j of batch row b is minus infinity for j >= Lengths[b]
//	softmax       x                -               axis:LAST         exp(x - max) / sum(exp(x - max)) over the last dim
//	eltwise       x                -               alg:gelu          x/2 * (1 + erf(x / sqrt 2)), the exact one
//	                                               alg:tanh          tanh x
//	slice         x [B,S,H]        -               -                 dst[b,:] = x[b,0,:]
//
// Masking: where Inputs holds Lengths, columns at and above the request's
// length do not take part. A softmax gives exactly 0 there, and the
// batch_matmul behind it must not read those rows of its second operand, which
// may hold anything. An operation that writes masked scores may leave the masked
// columns unwritten, because only a softmax that skips them reads them.
//
// # Data flow
//
// The lists do not name tensors. Parse infers them once, for all shapes, from
// kinds and symbolic dims (never from names), by these rules. "Unread" are the
// values that no operation has read yet.
//
//   - The first gather reads Tokens, the second TokenTypes.
//   - A matmul right behind a matmul with the same src dims reads what that one
//     reads (query, key and value). Every other matmul reads the latest unread
//     value; so do layernorm, softmax, eltwise and slice.
//   - A reorder reads the oldest unread value (query, key, value in turn).
//   - A batch_matmul reads for each operand the oldest unread value of exactly
//     its dims; the second operand may also be one with its last two dims
//     swapped, which sets TransposeB. Symbols make the two cases distinct.
//   - An add with a weight reads the latest unread value. One without reads the
//     two unread values before the first layernorm, and behind it the only
//     unread value and the residual, the output of the latest layernorm. So a
//     list is read as an encoder with the layer norm behind each residual
//     (post-LN), as all of the BERT family are.
//   - Scores that were masked make the softmax on them and the product behind
//     it masked too. Attention without a mask is refused, because requests are
//     padded and their outputs must not depend on it (SPEC E8).
//
// The result is checked: each reader asks for the dims of the value or for these
// with neighbours taken together or apart, and in the end exactly the last value
// is unread, which is the model's output. A list with a line left out or moved
// fails one of the two, unless what is left is a whole encoder of another
// structure (one without a residual, say); the header's totals tell that.
//
// # Concurrency
//
// A Model and everything it returns is immutable after Parse and safe for
// concurrent use.
package oplist
