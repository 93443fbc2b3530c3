//go:build cgo && linux

// Library libkiln is Kiln for programs in C and C++: kiln.h says all that it offers.
package main

/*
#define KILN_ONLY_TYPES
#include "kiln.h"

extern const char *const kiln_names[KILN_FAILED + 1];
*/
import "C"

import (
	"math"
	"unsafe"

	"github.com/kiln-cache/kiln/cmd/libkiln/internal/capi"
	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	_ "github.com/kiln-cache/kiln/gpuexec/cpu" // registers the processor
	"github.com/kiln-cache/kiln/gpuexec/cuda"
	_ "github.com/kiln-cache/kiln/gpuexec/onednn" // and oneDNN
	"github.com/kiln-cache/kiln/gpuexec/opencl"
	"github.com/kiln-cache/kiln/gpuexec/vulkan"
)

func main() {}

func init() {
	capi.Languages = map[string][]string{
		opencl.Name: {opencl.Language}, vulkan.Name: {vulkan.GLSL, vulkan.SPIRV}, cuda.Name: {cuda.Language},
	}
}

//export kiln_status_name
func kiln_status_name(status C.kiln_status) *C.char {
	if status < 0 || int(status) >= len(C.kiln_names) {
		status = C.KILN_FAILED
	}
	return C.kiln_names[status]
}

// answer runs one function, and fills e with what came of it.
func answer(e *C.kiln_error, fn func() error) C.kiln_status {
	err := capi.Call(fn)
	status := C.kiln_status(capi.StatusOf(err))
	if e == nil {
		return status
	}
	*e = C.kiln_error{status: status}
	if err != nil {
		reason, field := fault.ReasonOf(err)
		put(e.reason[:], string(reason))
		put(e.field[:], field)
		put(e.text[:], capi.Text(err))
	}
	return status
}

// put writes a text, cut where it is too long, with a zero byte behind it; to is zeros.
func put(to []C.char, text string) {
	for i, c := range []byte(capi.Cut(text, len(to)-1)) {
		to[i] = C.char(c)
	}
}

func invalid(what string) error { return fault.Invalidf("kiln", "%s is null", what) }

const (
	mostBytes = 1 << 30 // of a text or blob
	mostItems = 1 << 16 // of a list
)

// bytesAt are n bytes of C, which must not be kept.
func bytesAt(p unsafe.Pointer, n C.size_t, what string) ([]byte, error) {
	switch {
	case p == nil && n > 0:
		return nil, invalid(what)
	case n > math.MaxInt:
		return nil, fault.Invalidf("kiln", "%s has %d bytes, more than there can be", what, uint64(n))
	case n > mostBytes:
		return nil, fault.Wrap("kiln", what, "at most 1 GiB is taken", fault.ErrTooLarge)
	}
	return unsafe.Slice((*byte)(p), int(n)), nil
}

// list are n items of C.
func list[T any](p *T, n C.size_t, what string) ([]T, error) {
	switch {
	case p == nil && n > 0:
		return nil, invalid(what)
	case n > mostItems:
		return nil, fault.Invalidf("kiln", "%d %s, want at most %d", uint64(n), what, mostItems)
	}
	return unsafe.Slice(p, int(n)), nil
}

// fill gives value in two calls.
func fill[T string | []byte](value T, p unsafe.Pointer, size *C.size_t) error {
	var buffer []byte
	if p != nil {
		buffer = unsafe.Slice((*byte)(p), int(min(*size, C.size_t(len(value))))) // no more is written
	}
	var n int
	err := capi.Fill(value, buffer, &n)
	*size = C.size_t(n)
	return err
}

//export kiln_open
func kiln_open(dir *C.char, runtime *C.kiln_runtime, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if runtime == nil {
			return invalid("runtime")
		}
		var text string
		if dir != nil {
			text = C.GoString(dir)
		}
		h, err := capi.Open(text)
		*runtime = C.kiln_runtime(h)
		return err
	})
}

//export kiln_close
func kiln_close(runtime C.kiln_runtime, ms C.int64_t, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error { return capi.Close(uint64(runtime), int64(ms)) })
}

//export kiln_settle
func kiln_settle(runtime C.kiln_runtime, ms C.int64_t, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error { return capi.Settle(uint64(runtime), int64(ms)) })
}

//export kiln_device_open
func kiln_device_open(runtime C.kiln_runtime, backend *C.char, index C.int32_t, ms C.int64_t, device *C.kiln_device, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if backend == nil || device == nil {
			return invalid("backend or device")
		}
		h, err := capi.OpenDevice(uint64(runtime), C.GoString(backend), int(index), int64(ms))
		*device = C.kiln_device(h)
		return err
	})
}

//export kiln_device_close
func kiln_device_close(device C.kiln_device, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error { return capi.CloseDevice(uint64(device)) })
}

//export kiln_kernel_create
func kiln_kernel_create(device C.kiln_device, source *C.kiln_source, kernel *C.kiln_kernel, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if source == nil || kernel == nil {
			return invalid("source or kernel")
		}
		code, params, err := sourceOf(source)
		if err != nil {
			return err
		}
		h, err := capi.CreateKernel(uint64(device), code, params)
		*kernel = C.kiln_kernel(h)
		return err
	})
}

// sourceOf copies a source.
func sourceOf(s *C.kiln_source) (code gpuexec.Code, params []gpuexec.Param, err error) {
	if s.language == nil || s.entry == nil {
		return code, nil, invalid("language or entry")
	}
	text, err := bytesAt(unsafe.Pointer(s.text), s.text_size, "text")
	if err != nil {
		return code, nil, err
	}
	code = gpuexec.Code{Language: C.GoString(s.language), Text: string(text), Entry: C.GoString(s.entry)}
	options, err := list(s.options, s.option_count, "options")
	if err != nil {
		return code, nil, err
	}
	for _, o := range options {
		if o == nil {
			return code, nil, invalid("an option")
		}
		code.Options = append(code.Options, C.GoString(o))
	}
	if code.Defines, err = pairs(s.defines, s.define_count, "defines"); err != nil {
		return code, nil, err
	}
	if code.Includes, err = pairs(s.includes, s.include_count, "includes"); err != nil {
		return code, nil, err
	}
	for i, n := range s.block {
		if n > math.MaxInt32 {
			return code, nil, fault.Invalidf("kiln", "a block of %d items", uint64(n))
		}
		code.Block[i] = int(n)
	}
	given, err := list(s.params, s.param_count, "params")
	if err != nil {
		return code, nil, err
	}
	for _, p := range given {
		if p.kind < 0 || p.kind > math.MaxUint8 {
			return code, nil, fault.Invalidf("kiln", "a parameter of kind %d, want one of KILN_PARAM_", int32(p.kind))
		}
		params = append(params, gpuexec.Param{Kind: gpuexec.ParamKind(p.kind), Align: int(p.align), Bytes: int64(p.bytes)})
	}
	return code, params, nil
}

func pairs(p *C.kiln_pair, n C.size_t, what string) (map[string]string, error) {
	given, err := list(p, n, what)
	if err != nil || len(given) == 0 {
		return nil, err
	}
	all := make(map[string]string)
	for _, pair := range given {
		if pair.name == nil || pair.value == nil {
			return nil, invalid("a name or value of " + what)
		}
		name := C.GoString(pair.name)
		if _, twice := all[name]; twice {
			return nil, fault.Invalidf("kiln", "%s has %q twice", what, name)
		}
		all[name] = C.GoString(pair.value)
	}
	return all, nil
}

//export kiln_kernel_destroy
func kiln_kernel_destroy(kernel C.kiln_kernel, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error { return capi.DestroyKernel(uint64(kernel)) })
}

//export kiln_kernel_blob_id
func kiln_kernel_blob_id(kernel C.kiln_kernel, size *C.size_t, id *C.char, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if size == nil {
			return invalid("size")
		}
		text, err := capi.BlobID(uint64(kernel))
		if err != nil {
			return err
		}
		return fill(text, unsafe.Pointer(id), size)
	})
}

//export kiln_kernel_build
func kiln_kernel_build(kernel C.kiln_kernel, ms C.int64_t, origin *C.kiln_origin, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		from, err := capi.Build(uint64(kernel), int64(ms))
		if origin != nil && err == nil {
			*origin = C.kiln_origin(from)
		}
		return err
	})
}

//export kiln_kernel_blob
func kiln_kernel_blob(kernel C.kiln_kernel, ms C.int64_t, size *C.size_t, blob unsafe.Pointer, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if size == nil {
			return invalid("size")
		}
		value, err := capi.Blob(uint64(kernel), int64(ms))
		if err != nil {
			return err
		}
		return fill(value, blob, size)
	})
}

//export kiln_kernel_from_blob
func kiln_kernel_from_blob(kernel C.kiln_kernel, blob unsafe.Pointer, size C.size_t, ms C.int64_t, origin *C.kiln_origin, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		given, err := bytesAt(blob, size, "blob")
		if err != nil {
			return err
		}
		from, err := capi.FromBlob(uint64(kernel), given, int64(ms))
		if origin != nil && err == nil {
			*origin = C.kiln_origin(from)
		}
		return err
	})
}

//export kiln_constant_tensor_cache_capacity_set
func kiln_constant_tensor_cache_capacity_set(runtime C.kiln_runtime, kind C.kiln_kind, mib C.uint64_t, ms C.int64_t, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error { return capi.SetCapacity(uint64(runtime), int32(kind), uint64(mib), int64(ms)) })
}

//export kiln_constant_tensor_cache_capacity_get
func kiln_constant_tensor_cache_capacity_get(runtime C.kiln_runtime, kind C.kiln_kind, mib *C.uint64_t, e *C.kiln_error) C.kiln_status {
	return answer(e, func() error {
		if mib == nil {
			return invalid("mib")
		}
		n, err := capi.Capacity(uint64(runtime), int32(kind))
		if err == nil {
			*mib = C.uint64_t(n)
		}
		return err
	})
}
