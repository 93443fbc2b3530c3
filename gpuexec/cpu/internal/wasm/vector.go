package wasm

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Float32x4 is a constant with v in each lane.
func Float32x4(v float32) F32x4 {
	bits := math.Float32bits(v)
	return F32x4{constant(bits, bits, bits, bits)}
}

// Int32x4 is a constant with the given lanes.
func Int32x4(l0, l1, l2, l3 int32) I32x4 {
	return I32x4{constant(uint32(l0), uint32(l1), uint32(l2), uint32(l3))}
}

func constant(lanes ...uint32) []byte {
	out := simd(0x0c)
	for _, l := range lanes {
		out = binary.LittleEndian.AppendUint32(out, l)
	}
	return out
}

// LoadF32x4 reads the first lanes (1 to 4) from address a + offset; the lanes
// behind them are 0 and their memory is not touched.
func (a I32) LoadF32x4(offset uint32, lanes int) F32x4 {
	switch lanes {
	case 4:
		return F32x4(join(a.code, access(simd(0x00), offset)))
	case 3:
		pair := join(a.code, access(simd(0x5d), offset))
		return F32x4(join(a.code, pair.code, append(access(simd(0x56), offset+8), 2)...))
	case 2:
		return F32x4(join(a.code, access(simd(0x5d), offset)))
	case 1:
		return F32x4(join(a.code, access(simd(0x5c), offset)))
	}
	panic(fmt.Sprintf("wasm: a vector has no %d lanes", lanes))
}

// StoreF32x4 writes the first lanes (1 to 4) of x to address a + offset.
func (f *Func) StoreF32x4(a I32, offset uint32, x F32x4, lanes int) {
	if lanes == 4 {
		f.emit(a.code, x.code, access(simd(0x0b), offset))
		return
	}
	kept := NewVar(f, x)
	first := kept.Get().code
	switch lanes {
	case 3:
		f.emit(a.code, first, append(access(simd(0x5b), offset), 0))
		f.emit(a.code, first, append(access(simd(0x5a), offset+8), 2))
	case 2:
		f.emit(a.code, first, append(access(simd(0x5b), offset), 0))
	case 1:
		f.emit(a.code, first, append(access(simd(0x5a), offset), 0))
	default:
		panic(fmt.Sprintf("wasm: a vector has no %d lanes", lanes))
	}
}

// Add is a + b.
func (a F32x4) Add(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xe4)...)) }

// Sub is a - b.
func (a F32x4) Sub(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xe5)...)) }

// Mul is a * b.
func (a F32x4) Mul(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xe6)...)) }

// Div is a / b.
func (a F32x4) Div(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xe7)...)) }

// PMin is b where b < a, else a: a NaN in a stays, one in b does not enter.
// One machine instruction, which the minimum of IEEE 754 is not.
func (a F32x4) PMin(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xea)...)) }

// PMax is b where a < b, else a: a NaN in a stays, one in b does not enter.
func (a F32x4) PMax(b F32x4) F32x4 { return F32x4(join(a.code, b.code, simd(0xeb)...)) }

// Abs clears the sign.
func (a F32x4) Abs() F32x4 { return F32x4(join(a.code, simd(0xe0))) }

// Lt is a mask of the lanes where a < b.
func (a F32x4) Lt(b F32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0x43)...)) }

// Bits is a's bits as numbers.
func (a F32x4) Bits() I32x4 { return I32x4(a) }

// Lane is lane i (0 to 3).
func (a F32x4) Lane(i int) F32 {
	if i < 0 || i > 3 {
		panic(fmt.Sprintf("wasm: a vector has no lane %d", i))
	}
	return F32(join(a.code, simd(0x1f), byte(i)))
}

// Add is a + b, wrapping.
func (a I32x4) Add(b I32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0xae)...)) }

// Shl is a << bits in each lane.
func (a I32x4) Shl(bits uint32) I32x4 {
	return I32x4(join(a.code, Uint32(bits).code, simd(0xab)...))
}

// And is the bitwise a & b.
func (a I32x4) And(b I32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0x4e)...)) }

// AndNot is the bitwise a & ^b.
func (a I32x4) AndNot(b I32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0x4f)...)) }

// Or is the bitwise a | b.
func (a I32x4) Or(b I32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0x50)...)) }

// LtS is a mask of the lanes where the signed a < b.
func (a I32x4) LtS(b I32x4) I32x4 { return I32x4(join(a.code, b.code, simd(0x39)...)) }

// Floats is a's bits as floats.
func (a I32x4) Floats() F32x4 { return F32x4(a) }

// Select takes yes where the mask's bits are one, else no.
func (a I32x4) Select(yes, no F32x4) F32x4 {
	return F32x4(join(yes.code, no.code, append(append([]byte{}, a.code...), simd(0x52)...)...))
}
