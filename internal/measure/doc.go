// Package measure is the one way in which this project times things: the figures
// of `kiln bench`, the comparison with oneDNN and the table of stress/bench are
// all taken with it.
//
// A figure is a ratio, taken in rounds. In each round the subject and its peer
// take turns in short slices, and the quickest slice of each gives the round's
// ratio: other work on the machine only ever adds to a slice, so the quickest is
// the best estimate of the undisturbed cost, for both alike. The figure is the
// median over the rounds; the least and the most of them tell the spread. Where
// it narrowly misses its gate, more rounds are taken, a bounded number, and they
// count like the first. Times alone mean nothing and are not gated.
//
// Package reads, below it, has the workload of the read paths and their peer S.
//
// A Figure is a plain value. A Side is called by one goroutine at a time.
package measure
