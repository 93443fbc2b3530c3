// Package safetensors reads weight files in the safetensors format: an 8-byte
// little-endian length, a JSON header of that length, and the tensors' bytes.
//
// Only the reading of float32 tensors is offered; tensors of other types may be
// in a file and are passed over. The whole layout is checked at open: each
// tensor's bytes are those of its shape and type, lie in the file, and no two
// overlap, and together they cover everything behind the header. What breaks a
// rule is an *Error that names the file and the tensor.
//
// A File is immutable and safe for concurrent use until Close. Reading copies;
// no memory of the file is handed out.
//
// Source of the format: the description in the huggingface/safetensors
// repository (README, "Format").
package safetensors
