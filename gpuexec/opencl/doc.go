// Package opencl runs programs in OpenCL C on the devices of the OpenCL drivers that are
// installed. It registers itself as backend "opencl". The library is opened at run time,
// on 64-bit Linux: without it, or without a driver, the backend is there and every
// device of it is fault.ErrUnavailable, with what to install. The program needs neither
// C nor headers to be built.
//
// # Sources
//
// A source is a gpuexec.Code in Language, made by Code.Source. Defines become #define
// lines before the text, and each #include of the text is replaced by what Includes
// says. Options are those of OpenCL (-cl-…), -w, -Werror and -g. What would read a
// file, the clock or a header that is not in Includes is fault.ErrInvalid with the
// reason key_refused (SPEC K6). So are inline assembly, which may read files, C++, a
// pasted name that begins as such a thing does, and white space that compilers read
// differently. Constants are fault.ErrUnsupported: use Defines. A text
// that the driver does not compile is fault.ErrInvalid with the driver's build log.
//
// # Operations
//
// The backend is an ops.Library. Each kind of operation is one program with its flags,
// whose dimensions are numbers of the launch: a model compiles about ten programs, once,
// whatever shapes it runs. So Params say nothing of sizes: the caller gives each launch
// the buffers that its Op is for, and what Launch says of that Op. The bits of a row depend on that row's inputs alone. The
// kernels are vectors of 16 numbers, made for processors; on a GPU they are right, and slow.
//
// # Blobs
//
// A blob is the driver's binary behind a digest over it and the source's key, which is
// checked before the driver sees a byte: drivers check little, run what was damaged, or
// end the process (SPEC P11). PoCL compiles a program once more for each size of blocks,
// when it is first launched. Code.Block has that done before the blob is taken, with one
// run on zeros. An executor takes the blob behind a compile, but not beside launches: a
// first launch that comes while it is being taken waits for it, and so do others on
// that worker. Kernel.Blob waits in turn for launches under way. A launch of more than
// 65535 blocks in one dimension, or of another size of blocks, is compiled for when it
// first comes.
//
// PoCL writes the path of its cache folder into a binary. The environment is the
// program's, so nothing is changed about it here: a process that builds blobs for
// others should set POCL_CACHE_DIR to a folder whose name may be known. It must be
// writable: PoCL unpacks what it loads there. Kernels run inside the process; on a
// processor they may touch all its memory.
//
// # Concurrency
//
// What gpuexec says of a backend's types. Each run worker has an in-order queue and
// kernel objects of its own, since a cl_kernel may not be shared (SPEC E5). Errors of
// kernels come from Finish. A driver's signal handlers are taken away again after each
// call that may set them (SPEC E4); signal.Ignore or Reset during such a call is undone.
//
// # Testing
//
// The tests run on the first device that is found, and are skipped, with what to
// install, where there is none.
package opencl
