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
// name in a text with ## that begins like one of these, and white space that compilers
// read differently. Constants are fault.ErrUnsupported: use Defines. A text that the
// driver does not compile is fault.ErrInvalid with the driver's build log.
//
// # Operations
//
// The backend is an ops.Library. Each kind of operation is one program with its flags,
// whose dimensions are numbers of the launch: a model compiles about ten programs, once,
// whatever shapes it runs. Params give the size of each buffer as a product of those
// numbers, so a buffer that is too small for its launch is refused. The bits of a row
// depend on that row's inputs alone.
//
// The kernels are vectors of 16 numbers, made for processors. On other devices the two
// products are tiles in local memory instead: of 64 x 64 numbers, or of 32 x 32 where the
// device's limits on groups and local memory do not allow more. The tile is in the source,
// and so in its key. Config.Device says for which device. All other operations are right on
// a GPU, and slow; no GPU has run any.
//
// # Blobs
//
// A blob is the driver's binary behind a digest over it and the source's key, which is
// checked before the driver sees a byte: drivers check little, run what was damaged, or
// end the process (SPEC P11). PoCL compiles a program once more for each size of blocks,
// when it is first launched. With Code.Block it does so before the blob is taken, in one
// run on zeros. An executor takes the blob after a compile, but not beside launches: a
// first launch that comes meanwhile waits, and so do others on its worker. Kernel.Blob in
// turn waits for launches under way. For the first launch of more than 65535 blocks in one
// dimension, or of another size of blocks, PoCL compiles again.
//
// With Config.KnownBlobs a blob that was neither made nor loaded here before is loaded and
// run once by a child process first, with a cache folder of its own for PoCL. A driver that
// dies or hangs ends the child alone, and the blob is refused: a store sets it aside, and
// the program is compiled. The child ends with its parent.
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
// # Copies
//
// A device whose memory is the host's copies at once. One with memory of its own copies
// through two stages of 512 KiB a worker that its driver has pinned: the device copies one
// while the host fills or empties the other. A write returns when its bytes are in stages.
//
// # Testing
//
// The tests run on the first device that is found, and are skipped, with what to
// install, where there is none.
package opencl
