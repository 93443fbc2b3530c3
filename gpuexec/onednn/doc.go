// Package onednn makes and runs the primitives of oneDNN on the processor, by themselves
// or as the programs of a device. The library is opened at run time, on 64-bit Linux: 2.6,
// and 3.2 or later. Without it Open is fault.ErrUnavailable, with what to install. The
// program needs neither C nor headers to be built.
//
// # Requests
//
// A Library is a primitive.Library: a primitive.Engine on it gives descriptors and
// primitives out of the artefact cache, by the rules of SPEC D. A request is a
// primitive.Spec with these kinds, directions and tensors:
//
//	matmul               src, weights, bias or none, dst
//	inner_product        forward as matmul; backward_data: diff_src, weights, diff_dst;
//	                     backward_weights: src, diff_weights, diff_bias or none, diff_dst
//	convolution          as inner_product; strides, dilates, padding_l, padding_r
//	eltwise              src, dst; backward_data: diff_src, diff_dst, src (or dst, for the
//	                     functions _use_dst_for_bwd); alpha, beta
//	softmax              src, dst; backward_data: diff_src, diff_dst, dst; axis
//	layer_normalization  src, dst, statistics or none; backward, backward_data: diff_src,
//	                     diff_dst, src, statistics; epsilon, global_stats, scale, shift
//	pooling              src, dst; backward_data: diff_src, diff_dst; kernel and those of convolution
//	binary               src, src_1, dst
//	reduction            src, dst; p, epsilon
//	reorder              src, dst; by primitive.Reorder
//	sum, concat          the sources, dst; by primitive.Sum and Concat
//
// Execute takes each under the Slot of that name: Src, DiffWeights and so on, and Source(i) for
// those of a sum or a concatenation. A reorder has one source, which is Src and not Source(0).
//
// "None" is a Tensor without a type. A direction is forward_training (or forward),
// forward_inference (or inference, or none) or one of the backward ones; algorithms have
// the library's names without their kind. A tensor without strides has the layout that the
// library chooses, which the descriptor's Tensors tell; so have statistics that are left out and
// that an execution takes: it chooses by the source's. One that strides and blocks
// cannot say has Layout; 3.2 cannot give such a layout, and its implementations that
// want one are left out. The sizes of a matmul's tensors, and strides, may be math.MinInt64:
// known at execution only. One primitive then serves every size; its post-operations are
// eltwise or sum, and Execute compares the sizes of its memory with each other.
//
// Post-operations are sum, eltwise, binary and prelu. Scales are those of 3.x, and 2.6
// has none; zero points, and what else of the attributes a version has, are passed on. What it
// has not is fault.ErrUnsupported.
//
// The library takes some requests and then leaves the memory that it has for them, or puts
// numbers in wrong places; those that are known are fault.ErrUnsupported, or an implementation
// the fewer.
//
// Requests that say one thing in two ways are two entries, each with a primitive of its own:
// "forward" and "forward_training" as a direction, "inference" and none, an engine "cpu" and
// none, a parameter with the value that it has without. Use one way.
//
// A primitive is the Library's that made it, and Execute of another Library is
// fault.ErrInvalid. So is its memory. Two Libraries have primitives of their own where their
// engines are on one artefact cache, and constants of their own in one cache of constants.
//
// A backward request has the Hints of the forward descriptor: all its tensors, and its
// workspace. From them the forward descriptor is made again, so that a list depends on the
// request alone, and forward and backward may run on any two workers (SPEC D1, D5, D7).
//
// # Executions
//
// Execute runs a leased primitive on memory made by NewMemory. It compares slots, types, sizes
// and layouts before the library sees them (SPEC E3): the library itself would compute
// on, or crash. An execution has a worker, with a stream and scratch memory of its own,
// so that any number of goroutines share a primitive (SPEC E5), and one thread: its caller's.
//
// # The device
//
// Backend runs the operations of package ops, but attention, on the processor: a program is
// an operation of exact dimensions. A product runs in a form for any size, with the sizes
// known at execution only, until its program has run for so long that the primitive of its
// own sizes is worth the time to build it (100 ms with a weight, 20 ms with two inputs, 4 ms
// with the second of them transposed). Then that primitive is built in the background and
// takes over (SPEC E7): a device builds one at a time, and at most 64 wait. A launch with
// Wait builds it first. Softmax, layernorm, gelu and tanh run as loops in Go until their
// primitive is there. Where building the primitive takes less time than the loop, it is built
// first; so is that of a large product of two inputs, the second transposed. Gather, add,
// reorder and slice are always loops in Go. The library's forms round differently, so the
// bits of an output may depend on the form that a launch had; each is within 1e-4 of what cpu
// computes. Where the sequences of a batch have several lengths, a product that sums over the
// length is run for each sequence by itself.
//
// A weight is kept once, in rows, which both forms take: the form for any size takes no other
// layout. In the layout that the library would choose most products are at most a fifth
// quicker, but that of 768 x 3072 is nearly twice as quick (docs/devices.md has the command).
// A primitive goes with the last program that uses it, unless it is one of the 64, of at most
// 8 MiB together, that a device keeps. There are no blobs: fault.ErrUnsupported, of which a
// store tells once, and counts each (SPEC P17).
//
// # Constants
//
// Constant says how a weight becomes one in the layout that a primitive wants, to be kept
// by package constants: by its content and both layouts, so that equal weights of several
// models are one. Its capacity is that of the constants, and oneDNN's own Graph API, which
// has such a cache, is not used.
//
// # The process
//
// A process has one oneDNN, which is never unloaded. Loading it sets OMP_NUM_THREADS to
// 1 and ONEDNN_VERBOSE to none, and switches its own cache of primitives off, also for
// others in the process that use the same file. Where OpenMP has read its variables
// before, each execution tells its own thread; About.OpenMP says so, and whether there is
// more than one OpenMP. A build for SYCL is refused: it takes over the process's signals.
// A primitive is made on a goroutine of its own, whose thread ends where the library's
// assembler fails: 3.2 could not use that again.
// The library has no blobs on processors, so nothing of it is stored. After every 256 primitives
// that were destroyed the C library is told to give free memory back (malloc_trim): they
// are made and destroyed on many threads, and each would keep its share.
//
// # Errors
//
// What the library answers is in the error's text by its own name, and by its kind:
// fault.ErrInvalid, fault.ErrUnsupported (its unimplemented) or fault.ErrTooLarge (its
// out_of_memory).
//
// # Concurrency
//
// Everything is safe for concurrent use, but for the contents of a Memory.
//
// # Testing
//
// `make fetch-onednn` brings 3.2 and 3.13 into .cache, .ci/drivers Debian's 2.6. The tests
// run with each that is there, in a process for each.
package onednn
