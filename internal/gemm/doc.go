// Package gemm multiplies float32 matrices on the embedded cpu device:
// C = A·B + bias, where B is packed once and read by any number of goroutines.
//
// # The chain
//
// Every element of C is one chain of fused multiply-adds, one rounding each:
// it starts with the column's bias (or with +0, or with what C holds) and goes
// through k = 0, 1, ..., K-1 in that order. So its bits depend on its own row of
// A, its own column of B, its start and K alone (SPEC E8): not on M and N, the
// element's place, ragged edges, blocks, slices or goroutines. The chain is the
// same for every instruction set, the portable one included, so their results
// are equal bit for bit; only the payload of a NaN may differ. Rows of A that
// are longer than K need no padding: pass the K that is meant.
//
// # Shape of the work
//
// A Set holds the kernels of an instruction set: AVX-512, AVX2 with FMA, or
// portable Go (slow; for other processors and as a check on the first two).
// Set.Pack lays B out in panels of a few vectors' columns, each panel row after
// row, the last one filled up with zeros. A kernel keeps a tile of up to 14
// (AVX-512) or 6 (AVX2) rows by one panel in registers. The rows are cut into
// tiles of even height, so that few rows, as real queries have, fill the units;
// one to three rows take several panels at once instead. With AVX2 one call goes down a
// panel's tiles of one height: call by call they lose 2 % of a product, and of a short one more. While a panel is
// worked on the next one is prefetched, a share by each tile, so that weights
// which come from memory cost little more than those in the cache.
//
// A product that is deep in K goes slice by slice of A: all panels for one slice,
// then the next, so that B comes from memory once for all rows. The slice is
// copied, since rows whose distance is a multiple of 4 KiB fall into the same
// places of the first-level cache. (128 x 3072 x 768 with AVX-512, one core of
// Zen 4, beside oneDNN 2.6.3: 0.76 of it in place, 0.95 so.) The 6 rows of AVX2 lie well in
// place at other distances, and its calls go through three times as many values of k: then
// C is read and written less often. (One core of Zen 3, the time before over that so: 1.03 to 1.09 with
// K = 1536, 1.03 to 1.14 with K = 768, for 256 to 13 rows.)
//
// Set.Halves is a set whose B is packed as bfloat16, so that weights which come from
// memory are half as many bytes: two columns share 32 bits, and a shift and a mask make
// vectors of float32 of them. The chain is that of the rounded B.
//
// # Beside the products
//
// Set.PackKeys and Set.Softmax are what attention needs beside its two products: keys
// packed out of rows, times a scale, and the softmax of rows of scores, whatever their
// length. Set.GELU follows the widest product of an encoder. Their bits are the same
// with every set, too, and those of package kernels.
//
// # Scheduling
//
// Set.Blocks says into how many blocks a product is cut and Set.Run computes a
// run of them on the calling goroutine; the package starts none. A kernel cannot
// be preempted, but one call lasts 0.1 ms at most (SPEC E4): K is
// cut too, and the chain goes on from the partial sums in C.
//
// Wrong sizes are an ErrInvalid that says what would be right, with nothing
// written. All of a Set's methods are safe for concurrent use; calls that write
// the same C are the caller's to keep apart.
//
// The assembly is written by the command in asmgen: run go generate.
package gemm
