package tensorfile

import (
	"encoding/binary"
	"math"
	"unsafe"
)

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// floats gives numbers of type F32, F16 or BF16 as float32: where they lie, if they lie
// there as this machine reads them.
func floats(kind string, bytes []byte) ([]float32, bool) {
	switch kind {
	case "F32":
		if first := unsafe.SliceData(bytes); littleEndian && uintptr(unsafe.Pointer(first))%4 == 0 {
			return unsafe.Slice((*float32)(unsafe.Pointer(first)), len(bytes)/4), true
		}
		out := make([]float32, len(bytes)/4)
		if littleEndian {
			copy(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(out))), 4*len(out)), bytes)
			return out, true
		}
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
		}
		return out, true
	case "F16":
		out := make([]float32, len(bytes)/2)
		for i := range out {
			out[i] = half(binary.LittleEndian.Uint16(bytes[2*i:]))
		}
		return out, true
	case "BF16":
		out := make([]float32, len(bytes)/2)
		for i := range out {
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(bytes[2*i:])) << 16)
		}
		return out, true
	}
	return nil, false
}

// half is the value of a number in IEEE 754's binary16, which float32 has exactly.
func half(bits uint16) float32 {
	sign, exponent, fraction := uint32(bits>>15)<<31, bits>>10&0x1f, uint32(bits&0x3ff)
	switch exponent {
	case 0: // zero, and what is too small for a leading 1
		v := float32(fraction) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f: // infinite, or no number
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (uint32(exponent)+127-15)<<23 | fraction<<13)
}
