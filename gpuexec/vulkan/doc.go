// Package vulkan drives the devices of Vulkan: kernels in SPIR-V, and in GLSL where
// the compiler glslc or glslang is installed. The loader (libvulkan.so.1) and the drivers
// are opened at run time, without cgo; where they are absent the backend says what to
// install. Importing the package makes the backend "vulkan" known to package gpuexec.
//
// # Kernels
//
// A kernel is a gpuexec.Code in the language SPIRV, whose Text is the bytes of a
// module, or GLSL, a compute shader. Its buffers are storage, uniform or texel buffers in
// descriptor set 0; the buffer parameters go to the bindings in ascending order. Texels
// (textureBuffer) are vectors of 4 float32; a part of one at the end is left out. All
// numbers and structs together are its push constants: one behind the other, a
// number at a multiple of its size, a struct at a multiple of 16. Code.Constants set
// specialisation constants. Code.Block, or the block of a launch, sets the size of a
// group where the module leaves it to specialisation constants (local_size_x_id);
// a module that fixes its size takes no other. Local memory is declared in the
// module: there is no ParamLocal.
//
// # Operations
//
// The backend runs the operations of package ops (ops.Library). Their modules are built in,
// one for each kind and choice of flags: it serves every shape. A tensor of more than
// 2^31-1 elements and a sum of more than 65,536 terms are ErrUnsupported. An id beyond
// the table of a gather takes its last row.
//
// # What is kept over restarts
//
// The blob of a shader in GLSL is the module that was compiled of it, which a store keeps.
// It fits the compiler that made it, in that version: a process without it compiles anew
// with another one, or fails. Where both are installed glslc is taken. glslang (Debian:
// glslang-tools) does not know -Werror, and optimises for size alone (-Os). The module of a kernel in SPIR-V is given: its blob
// says that it was built and no more, so that stores and `kiln warm` count such kernels
// like others.
//
// Vulkan's drivers keep compiled pipelines in a cache of their own, VkPipelineCache,
// for all pipelines together. With Config.PipelineFile the device keeps that cache in
// a file (package pipelinefile): it is loaded when the device is opened, and saved when
// it is closed, after every 32nd pipeline, and a minute after the first that is not in it.
// What the driver says of its cache (creation feedback) is counted: Backend.Stats. Some
// drivers, such as Mesa's lavapipe, keep nothing there.
//
// # Devices
//
// Devices are listed discrete ones first, then integrated and virtual ones, and
// software, and last what cannot be used. Config.Prefer, which the command and package
// encoder take from KILN_VULKAN_DEVICE, has devices of a name come first, usable or not.
// The variables of the loader choose among the drivers (VK_DRIVER_FILES, VK_LOADER_DRIVERS_SELECT).
//
// # Failure
//
// A module is read before the driver sees it: what is no SPIR-V, or takes more than
// the parameters give, is refused. Accesses beyond a buffer are bounded by the device
// where it can (robustBufferAccess). A driver that reports a lost device makes the
// executor lose it (fault.ErrDeviceLost).
package vulkan
