// Package canon is the canonical encoding of keys: typed fields in a fixed
// order, each with its tag, lists with their lengths (SPEC K1).
//
// A value is a header, uvarint(tag<<3 | type), and a body:
//
//	Uint   uvarint
//	Int    uvarint of the zigzag form
//	Bytes  uvarint length, bytes
//	Float  8 bytes, the IEEE 754 bits, little-endian
//	Ints   uvarint count, that many zigzag uvarints
//	Group  uvarint count, that many values
//
// Every value has one encoding only: Walk refuses uvarints that are longer than
// they need to be, so that equal bytes and equal values mean the same. Encoders
// append to the caller's buffer and allocate nothing if it is large enough.
// Decoding believes no length: it allocates nothing that the bytes do not hold.
//
// All functions are pure and safe for concurrent use.
package canon
