// Package tensorfile reads weight files of two formats: safetensors, which is an 8-byte
// little-endian length, a JSON header of that length, and the tensors' bytes; and the
// initialisers of ONNX models, which are messages of protobuf.
//
// Tensors of type F32, F16 and BF16 are read as float32; those of other types may be
// in a file and are passed over. The whole layout is checked at open: each
// tensor's bytes are those of its shape and type and lie in the file. In safetensors no two
// overlap, and together they cover everything behind the header. What breaks a
// rule is an *Error that names the file and the tensor.
//
// Exporters of ONNX keep the names of tensors but of the kernels of linear layers, which
// they store transposed: these get their names back from the graph, and are Turned. A
// model's numbers may be in other files, of its folder or below it.
//
// A File is immutable and safe for concurrent use. It is mapped where the system can,
// and lends its memory for the time of one call: Close waits for those who read.
//
// Sources of the formats: the description in the huggingface/safetensors
// repository (README, "Format"), and onnx/onnx.proto with docs/ExternalData.md in onnx/onnx.
package tensorfile
