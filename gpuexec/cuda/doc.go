// Package cuda runs programs in CUDA C on NVIDIA's devices. It registers itself as backend
// "cuda". It opens the driver (libcuda.so.1) and the compiler NVRTC at run time, on 64-bit
// Linux: without either, the backend is there and every device of it is
// fault.ErrUnavailable, with what to install. No toolkit is needed, nor C to build the
// program. No GPU has run it yet: see docs/gpu.md.
//
// # Sources
//
// A source is a gpuexec.Code in Language, made by Code.Source. The entry is declared
// extern "C". Defines become #define lines before the text, and Includes are all the
// headers there are: none of the toolkit's. Options are -std=c++11 to c++20, -use_fast_math,
// -ftz, -prec-div, -prec-sqrt and -fmad with =true or =false, -maxrregcount=, -restrict,
// -default-device, -extra-device-vectorization and -w. What would read a file or the clock
// is fault.ErrInvalid with the reason key_refused (SPEC K6), in a comment, too. Constants
// are fault.ErrUnsupported: use Defines. A text that does not compile is fault.ErrInvalid
// with the compiler's log.
//
// Parameters are the kernel's, in their order, but for at most one of local memory, which
// the kernel does not take: it is the memory of its extern __shared__ array. A parameter of
// another size or kind than the kernel's is fault.ErrInvalid; a number of 64 bits and a
// pointer are not told apart.
//
// # Compiles
//
// NVRTC compiles in helper processes, one a core for all executors of a process, with no
// environment but the loader's: a text may end the compiler, and nothing stops it. One that
// is killed, hangs, or keeps more than 512 MiB is replaced; one that asks for more than 4 GiB
// ends. A text that two of them have ended over is fault.ErrInvalid, and fault.ErrOverloaded
// where others killed them, as a machine without memory does, or where they crashed before
// they had it. A source's texts may have 256 MiB together, else they are fault.ErrTooLarge, and
// far fewer of constants: for a byte of these NVRTC was seen to take from 60 bytes (numbers of
// seven digits) to 220 (of one), so that 4 GiB bear some 18 MB of the latter. Put large
// constants into a buffer. A helper is the running executable,
// started again. Its packages are initialised up to this one, and main does not run: a
// program that must not be started so sets Config.InProcess.
//
// Compile compiles without a device, for the stores of machines that have one.
//
// # Blobs
//
// A blob is the code for the device's compute capability (a cubin) and its PTX, behind a
// digest over them and the source's key. The cubin's header is checked before the driver
// sees it (SPEC P3, P11). A device that the cubin is not for gets the PTX, which its driver
// compiles; where the driver is older than the compiler, that is fault.ErrRefused with the
// reason outdated. Neither the driver nor, without cuBLAS, the name of the device is in the
// identity: NVRTC makes the code, for a compute capability.
//
// # cuBLAS
//
// Config.CUBLAS names a second implementation of ops.MatMul, and of ops.BatchMatMul without
// Op.MaskK. A product then has a program for each class of shapes: rows up to the next power
// of two with a weight's own sizes, and in batches every size so. When it is compiled, the
// kernel of this package and cuBLAS compute the class in turns on that device, in at most
// some 256 MiB, and the quicker one stays. Before that they compute once each, and a cuBLAS
// that gives other numbers counts as one that fails. What was chosen is in the blob, so that a
// process that finds it in a store neither compiles nor measures; the class is in the key,
// cuBLAS's version and the device's name are in the identity. Within a process the first choice
// holds, whatever a blob says that is loaded later. A measurement that fails, for want of memory
// or of cuBLAS itself, chooses nothing: the kernel computes, and whoever loads that blob
// measures. On one device one measures at a time.
//
// cuBLAS computes in float32 in its pedantic mode, without TF32, with one handle and 4 or 32
// MiB of workspace for each worker that used it. Bits of a row may depend on what is beside
// it then. Where a call of it fails, the kernel computes, as it does from then on for as long
// as the device is open: no request fails of it.
//
// # Memory
//
// An open device has a memory pool of its own: a buffer that is given back waits for nothing
// that other workers run, and its memory is there for the next one. Of what nobody has it
// keeps at most a sixteenth of the device's memory. Drivers before CUDA 11.2, and devices
// without pools, allocate each buffer by itself, and wait for all workers at each release.
//
// # Failure
//
// A kernel that traps, or touches what is not its own, takes its context with it: all calls
// are fault.ErrDeviceLost from then on. The executor opens the device again, which resets
// its primary context, other users of that in the process included.
//
// # Concurrency
//
// What gpuexec says of a backend's types. Each run worker has a stream of its own, and
// memory that the driver has pinned, through which copies go. A call of the driver leaves
// its thread the context that was current before.
//
// # Testing
//
// The tests run on a driver made of Go, which runs the PTX that NVRTC made, and are skipped
// where there is no NVRTC: make fetch-nvrtc. On a machine with a GPU, make test-gpu runs
// the same tests on its driver.
package cuda
