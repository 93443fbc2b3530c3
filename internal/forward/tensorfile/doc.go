// Package tensorfile reads weight files in the safetensors format: an 8-byte
// little-endian length, a JSON header of that length, and the tensors' bytes.
//
// Tensors of type F32, F16 and BF16 are read as float32; those of other types may be
// in a file and are passed over. The whole layout is checked at open: each
// tensor's bytes are those of its shape and type, lie in the file, and no two
// overlap, and together they cover everything behind the header. What breaks a
// rule is an *Error that names the file and the tensor.
//
// A File is immutable and safe for concurrent use. It is mapped where the system can,
// and lends its memory for the time of one call: Close waits for those who read.
//
// Source of the format: the description in the huggingface/safetensors
// repository (README, "Format").
package tensorfile
