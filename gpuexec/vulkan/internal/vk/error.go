//go:build linux && (amd64 || arm64)

package vk

import (
	"fmt"

	"github.com/kiln-cache/kiln/fault"
)

// Result is a VkResult.
type Result int32

// Results that are no errors to their callers.
const (
	Timeout Result = 2
)

var results = map[Result]struct {
	name string
	is   error
}{
	-1:  {"VK_ERROR_OUT_OF_HOST_MEMORY", fault.ErrTooLarge},
	-2:  {"VK_ERROR_OUT_OF_DEVICE_MEMORY", fault.ErrTooLarge},
	-3:  {"VK_ERROR_INITIALIZATION_FAILED", fault.ErrUnavailable},
	-4:  {"VK_ERROR_DEVICE_LOST", fault.ErrDeviceLost},
	-5:  {"VK_ERROR_MEMORY_MAP_FAILED", fault.ErrTooLarge},
	-6:  {"VK_ERROR_LAYER_NOT_PRESENT", fault.ErrUnavailable},
	-7:  {"VK_ERROR_EXTENSION_NOT_PRESENT", fault.ErrUnsupported},
	-8:  {"VK_ERROR_FEATURE_NOT_PRESENT", fault.ErrUnsupported},
	-9:  {"VK_ERROR_INCOMPATIBLE_DRIVER", fault.ErrUnavailable},
	-10: {"VK_ERROR_TOO_MANY_OBJECTS", fault.ErrTooLarge},
	-11: {"VK_ERROR_FORMAT_NOT_SUPPORTED", fault.ErrUnsupported},
	-12: {"VK_ERROR_FRAGMENTED_POOL", fault.ErrTooLarge},

	-1000012000: {"VK_ERROR_INVALID_SHADER_NV", fault.ErrInvalid},
	-1000069000: {"VK_ERROR_OUT_OF_POOL_MEMORY", fault.ErrTooLarge},
	-1000161000: {"VK_ERROR_FRAGMENTATION", fault.ErrTooLarge},
}

// failed is the error of a call, nil for a result that is none. One that means nothing more, as
// VK_ERROR_UNKNOWN, has its number.
func failed(call string, r Result) error {
	if r >= 0 {
		return nil
	}
	known, ok := results[r]
	if !ok {
		return &fault.Error{Op: call, Backend: "vulkan", Err: fmt.Errorf("VkResult %d", r)}
	}
	return fmt.Errorf("%s: %s: %w", call, known.name, known.is)
}
