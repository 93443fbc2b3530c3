package onednn

import "unsafe"

// direct has *fn call what is at an address, if it is one of these: they take integers and
// pointers alone, and most are called for each primitive that is made or executed. What
// translates the arguments of any function takes ten times as long as the call.
func direct(fn any, at uintptr) bool {
	switch f := fn.(type) {
	case *func(h *handle) int32:
		*f = func(h *handle) int32 { return int32(calls(at, uintptr(unsafe.Pointer(h)))) }
	case *func(h handle) int32:
		*f = func(h handle) int32 { return int32(calls(at, uintptr(h))) }
	case *func(md *memoryDesc) int32:
		*f = func(md *memoryDesc) int32 { return int32(calls(at, uintptr(unsafe.Pointer(md)))) }
	case *func(md *memoryDesc) uintptr:
		*f = func(md *memoryDesc) uintptr { return calls(at, uintptr(unsafe.Pointer(md))) }
	case *func(h, other handle) int32:
		*f = func(h, other handle) int32 { return int32(calls(at, uintptr(h), uintptr(other))) }
	case *func(h handle, number int32) int32:
		*f = func(h handle, number int32) int32 { return int32(calls(at, uintptr(h), uintptr(number))) }
	case *func(h handle, from unsafe.Pointer) int32:
		*f = func(h handle, from unsafe.Pointer) int32 { return int32(calls(at, uintptr(h), uintptr(from))) }
	case *func(h *handle, of handle) int32:
		*f = func(h *handle, of handle) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(h)), uintptr(of)))
		}
	case *func(a, b *memoryDesc) int32:
		*f = func(a, b *memoryDesc) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(a)), uintptr(unsafe.Pointer(b))))
		}
	case *func(h, stream handle, n uintptr, args *execArg) int32:
		*f = func(h, stream handle, n uintptr, args *execArg) int32 {
			return int32(calls(at, uintptr(h), uintptr(stream), n, uintptr(unsafe.Pointer(args))))
		}
	default:
		return directDesc(fn, at)
	}
	return true
}

// directDesc is direct, for what asks and makes descriptors.
func directDesc(fn any, at uintptr) bool {
	switch f := fn.(type) {
	case *func(pd handle, what, index int32, result **byte) int32:
		*f = func(pd handle, what, index int32, result **byte) int32 {
			return int32(calls(at, uintptr(pd), uintptr(what), uintptr(index), uintptr(unsafe.Pointer(result))))
		}
	case *func(pd handle, what, index int32) *memoryDesc:
		*f = func(pd handle, what, index int32) *memoryDesc {
			md := calls(at, uintptr(pd), uintptr(what), uintptr(index))
			return *(**memoryDesc)(unsafe.Pointer(&md)) // the library's memory
		}
	case *func(md *memoryDesc, what int32, result *int64) int32:
		*f = func(md *memoryDesc, what int32, result *int64) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(md)), uintptr(what), uintptr(unsafe.Pointer(result))))
		}
	case *func(md *memoryDesc, what int32, result **dims) int32:
		*f = func(md *memoryDesc, what int32, result **dims) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(md)), uintptr(what), uintptr(unsafe.Pointer(result))))
		}
	case *func(md **memoryDesc, n int32, d *dims, dataType int32, strides *dims) int32:
		*f = func(md **memoryDesc, n int32, d *dims, dataType int32, strides *dims) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(md)), uintptr(n), uintptr(unsafe.Pointer(d)), uintptr(dataType), uintptr(unsafe.Pointer(strides))))
		}
	case *func(pd *handle, src *memoryDesc, on handle, dst *memoryDesc, to, a handle) int32:
		*f = func(pd *handle, src *memoryDesc, on handle, dst *memoryDesc, to, a handle) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(pd)), uintptr(unsafe.Pointer(src)), uintptr(on), uintptr(unsafe.Pointer(dst)), uintptr(to), uintptr(a)))
		}
	case *func(pd *handle, on handle, src, weights, bias, dst *memoryDesc, attr handle) int32:
		*f = func(pd *handle, on handle, src, weights, bias, dst *memoryDesc, attr handle) int32 {
			return int32(calls(at, uintptr(unsafe.Pointer(pd)), uintptr(on), uintptr(unsafe.Pointer(src)), uintptr(unsafe.Pointer(weights)),
				uintptr(unsafe.Pointer(bias)), uintptr(unsafe.Pointer(dst)), uintptr(attr)))
		}
	default:
		return false
	}
	return true
}
