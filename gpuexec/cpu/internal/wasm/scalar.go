package wasm

import (
	"encoding/binary"
	"math"
)

// expression is what every type of value is made of: the instructions that
// leave the value on the operand stack.
type expression = struct{ code []byte }

// The types of values. Each is an expression of that type.
type (
	// I32 is a 32-bit number, as signed or unsigned as the operation on it says.
	I32 struct{ code []byte }
	// F32 is a float32.
	F32 struct{ code []byte }
	// F32x4 is four float32, lane 0 first in memory.
	F32x4 struct{ code []byte }
	// I32x4 is four 32-bit numbers, or a mask: all bits of a lane one or zero.
	I32x4 struct{ code []byte }
)

// Value is any type of value.
type Value interface{ I32 | F32 | F32x4 | I32x4 }

func code[T Value](v T) []byte { return expression(v).code }

func typeOf[T Value]() valueType {
	switch any(*new(T)).(type) {
	case I32:
		return typeI32
	case F32:
		return typeF32
	default:
		return typeV128
	}
}

// join evaluates a, then b, then applies op.
func join(a, b []byte, op ...byte) expression {
	out := make([]byte, 0, len(a)+len(b)+len(op))
	out = append(out, a...)
	out = append(out, b...)
	return expression{append(out, op...)}
}

// simd is the encoding of a vector instruction.
func simd(op uint32) []byte { return uleb([]byte{0xfd}, uint64(op)) }

// access is the encoding of an instruction's memory operand: an address that is
// a multiple of 4 bytes, as every buffer of 32-bit numbers is, and a constant
// that is added to it without wrapping.
func access(op []byte, offset uint32) []byte { return uleb(append(op, 2), uint64(offset)) }

// Int32 is a constant.
func Int32(v int32) I32 { return I32{sleb([]byte{0x41}, int64(v))} }

// Uint32 is a constant.
func Uint32(v uint32) I32 { return Int32(int32(v)) }

// Float32 is a constant; a NaN keeps its bits.
func Float32(v float32) F32 {
	return F32{binary.LittleEndian.AppendUint32([]byte{0x43}, math.Float32bits(v))}
}

// Add and the other arithmetic on I32 wraps.
func (a I32) Add(b I32) I32 { return I32(join(a.code, b.code, 0x6a)) }

// Sub is a - b.
func (a I32) Sub(b I32) I32 { return I32(join(a.code, b.code, 0x6b)) }

// Mul is a * b.
func (a I32) Mul(b I32) I32 { return I32(join(a.code, b.code, 0x6c)) }

// DivU is the unsigned a / b; b = 0 traps.
func (a I32) DivU(b I32) I32 { return I32(join(a.code, b.code, 0x6e)) }

// RemU is the unsigned a mod b; b = 0 traps.
func (a I32) RemU(b I32) I32 { return I32(join(a.code, b.code, 0x70)) }

// And is the bitwise a & b.
func (a I32) And(b I32) I32 { return I32(join(a.code, b.code, 0x71)) }

// Shl is a << bits.
func (a I32) Shl(bits uint32) I32 { return I32(join(a.code, Uint32(bits).code, 0x74)) }

// AddConst is a + c.
func (a I32) AddConst(c int32) I32 {
	if c == 0 {
		return a
	}
	return a.Add(Int32(c))
}

// MulConst is a * c.
func (a I32) MulConst(c uint32) I32 {
	if c == 1 {
		return a
	}
	return a.Mul(Uint32(c))
}

// Eq is 1 if a = b, else 0.
func (a I32) Eq(b I32) I32 { return I32(join(a.code, b.code, 0x46)) }

// LtU is 1 if the unsigned a < b, else 0.
func (a I32) LtU(b I32) I32 { return I32(join(a.code, b.code, 0x49)) }

// GeU is 1 if the unsigned a >= b, else 0.
func (a I32) GeU(b I32) I32 { return I32(join(a.code, b.code, 0x4f)) }

// MinU is the smaller of the unsigned a and b. Both are evaluated twice.
func (a I32) MinU(b I32) I32 {
	return I32(join(join(a.code, b.code).code, a.LtU(b).code, 0x1b))
}

// Splat is a in each lane.
func (a I32) Splat() I32x4 { return I32x4(join(a.code, simd(0x11))) }

// Float is the signed a as a float32, rounded to nearest.
func (a I32) Float() F32 { return F32(join(a.code, nil, 0xb2)) }

// LoadI32 reads the number at address a + offset.
func (a I32) LoadI32(offset uint32) I32 {
	return I32(join(a.code, access([]byte{0x28}, offset)))
}

// Add is a + b.
func (a F32) Add(b F32) F32 { return F32(join(a.code, b.code, 0x92)) }

// Sub is a - b.
func (a F32) Sub(b F32) F32 { return F32(join(a.code, b.code, 0x93)) }

// Mul is a * b.
func (a F32) Mul(b F32) F32 { return F32(join(a.code, b.code, 0x94)) }

// Div is a / b.
func (a F32) Div(b F32) F32 { return F32(join(a.code, b.code, 0x95)) }

// Max is the larger of a and b, NaN if either is, +0 of two zeros.
func (a F32) Max(b F32) F32 { return F32(join(a.code, b.code, 0x97)) }

// Sqrt is the square root, correctly rounded.
func (a F32) Sqrt() F32 { return F32(join(a.code, nil, 0x91)) }

// Splat is a in each lane.
func (a F32) Splat() F32x4 { return F32x4(join(a.code, simd(0x13))) }
