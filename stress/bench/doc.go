// Command bench measures Kiln's lookups and misses beside those of other caches
// and of oneDNN's own primitive cache, with the same keys in one run. It is a
// module of its own, so that what it compares with stays out of Kiln's.
//
//	go run . --plot bench.png
//	go run . --entries 16384 --rounds 3 --slot 5ms    # some ten seconds
//
// # How a figure is taken
//
// In rounds: each round gives every contender one slot of time after the other,
// in an order that rotates, so that other work on the machine meets all of them.
// A slot gives nanoseconds a lookup. With one goroutine that is the time of its
// quickest slice, as in the figures of `kiln bench`; with several it is wall time
// over the lookups of all of them, in the quickest fifth of the slot. Other work
// only ever adds. Shown are the median over the rounds with the least and the
// most. Ratios are taken within a round, and their median is shown. Trust the
// ratios: the times are the machine's.
//
// The requests, the ways to ask Kiln, S and the peer of a miss are those of
// internal/measure/reads, which `kiln bench` holds against its gates. Every
// contender walks the same requests, Zipf-distributed over all keys, with what it
// is asked by laid out in the requests' order. S is made again for each round of
// readers alone, as it is there: the seed of a map makes it quick or slow for as
// long as it lives.
//
// A second kind of slot has a writer beside the readers. It puts one new key for
// 64 lookups into a cache that is full, so that something is evicted for each;
// maps without a bound delete an old key instead. There the whole slot counts. The
// collector runs between rounds only: it would charge each contender for what all
// of them hold.
//
// Misses are measured apart: all goroutines walk the same absent names, of which
// each is to be made once.
//
// # oneDNN
//
// Its cache is asked in C, in a process of its own (internal/measure/incumbent), with its own
// keys: 128 matmuls, however many entries the others hold, since it keeps more
// than 100 KB for each. Two denominators are shown, and a claim must name one:
// all-in, as frameworks do it, stands against our lookup with its key built; and
// descriptor and primitive with the memory descriptors kept stand against our
// lookup with the key kept. The library comes from `make fetch-onednn`.
package main
