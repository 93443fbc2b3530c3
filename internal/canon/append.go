package canon

import (
	"encoding/binary"
	"math"
)

// Tag names a field within the group around it. Tags are part of the format:
// one is never given to another field.
type Tag uint32

// Type is the kind of a value.
type Type uint8

// The types, as they stand in the lowest three bits of a header.
const (
	Uint Type = iota
	Int
	Bytes
	Float
	Ints
	Group
)

func header(dst []byte, tag Tag, t Type) []byte {
	return binary.AppendUvarint(dst, uint64(tag)<<3|uint64(t))
}

// AppendUint appends an unsigned number.
func AppendUint(dst []byte, tag Tag, v uint64) []byte {
	return binary.AppendUvarint(header(dst, tag, Uint), v)
}

// AppendBool appends 0 or 1.
func AppendBool(dst []byte, tag Tag, v bool) []byte {
	if v {
		return AppendUint(dst, tag, 1)
	}
	return AppendUint(dst, tag, 0)
}

// AppendInt appends a signed number.
func AppendInt(dst []byte, tag Tag, v int64) []byte {
	return binary.AppendVarint(header(dst, tag, Int), v)
}

// AppendString appends a text or any bytes.
func AppendString[S ~string | ~[]byte](dst []byte, tag Tag, v S) []byte {
	dst = binary.AppendUvarint(header(dst, tag, Bytes), uint64(len(v)))
	return append(dst, v...)
}

// AppendFloat appends the bits of a number; every NaN and both zeros differ.
func AppendFloat(dst []byte, tag Tag, v float64) []byte {
	return binary.LittleEndian.AppendUint64(header(dst, tag, Float), math.Float64bits(v))
}

// AppendInts appends a list of numbers with its length.
func AppendInts[N ~int | ~int64](dst []byte, tag Tag, v []N) []byte {
	dst = binary.AppendUvarint(header(dst, tag, Ints), uint64(len(v)))
	for _, n := range v {
		dst = binary.AppendVarint(dst, int64(n))
	}
	return dst
}

// AppendGroup begins a group or list of n values, which the caller appends next.
func AppendGroup(dst []byte, tag Tag, n int) []byte {
	return binary.AppendUvarint(header(dst, tag, Group), uint64(n))
}
