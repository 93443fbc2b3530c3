// Package ops describes the operations of a transformer, apart from any device:
// what they compute, their exact dimensions, and the order of their arguments.
// A backend turns an Op into a gpuexec.Source (Library); equal Ops mean the same
// program on one device.
//
// # Operations
//
// All tensors are dense, row-major float32 unless said otherwise. An argument in
// brackets is there only where the Op says so. out may be the very buffer of an
// argument marked *.
//
//	kind          dims                          arguments
//	gather        rows width entries            ids int32 [rows], table [entries,width], out [rows,width]
//	add           rows width period             a* [rows,width], b [period,width] repeated, out
//	layernorm     rows width                    x* [rows,width], gamma [width], beta [width], out
//	matmul        m k n                         x [m,k], weight (prepared) [k,n], [bias [n]], out [m,n]
//	batch_matmul  batch heads m k n             a [batch,heads,m,k], b [batch,heads,k,n] or, transposed,
//	                                            [batch,heads,n,k], lengths int32 [batch], out [batch,heads,m,n]
//	softmax       batch heads queries keys      x* [batch,heads,queries,keys], lengths int32 [batch], out
//	reorder       a b c d                       x [a,b,c,d], out [a,c,b,d]
//	gelu, tanh    rows width                    x* [rows,width], out
//	slice         batch rows width              x [batch,rows,width], out [batch,width]: the first rows
//	attention     tokens heads width sequences  q*, k and v [tokens,heads,width], starts int32 [sequences+1],
//	                                            out [tokens,heads,width]
//
// The prepared weight of a matmul with Op.BFloat16 holds numbers of bfloat16, each the
// nearest of the weight's; all else is float32. Only cpu has it.
//
// An id that gather's table has no row for gives ErrInvalid or a row that means
// nothing, as the device has it; nothing outside of the table is read.
//
// lengths are the valid positions of each batch item. What lies behind them is
// padding: softmax skips padded keys and writes 0 for them; batch_matmul sums
// over the valid part of k only, where Op.MaskK is set. A length below 0, or above
// what the tensor has, counts as all of it; where it is 0 nothing is valid, and softmax
// and such a sum give 0. Rows of padding may hold anything finite.
//
// attention is softmax(q kT * scale) v for each sequence of a ragged batch by itself:
// the tokens of all sequences lie one behind another, and sequence i has those from
// starts[i] up to starts[i+1] (elsewhere: cu_seqlens). starts ascends from 0 to tokens;
// a sequence may be empty, so that of fewer sequences ends with tokens repeated. Where it
// does not, the launch gives ErrInvalid with out untouched, or rows that mean nothing, as
// the device has it; nothing outside of the tensors is read or written.
//
// # Bits
//
// On cpu, opencl, vulkan and cuda the bits of an output row depend on that row's inputs
// alone (SPEC E8): every reduction has one written order that neither padding nor
// batch changes. On onednn, and on cuda with cuBLAS, they may differ by rounding.
package ops
