// Package figures measures Kiln's hot paths as ratios to a peer in the same
// run, and holds them against their gates. It is what `kiln bench` prints.
//
// A figure is taken in rounds. In each, the subject and its peer take turns in
// short slices, and the quickest slice of each gives the round's ratio: other
// work on the machine only ever adds to a slice, so the quickest is the best
// estimate of the undisturbed cost, for both alike. The figure is the median
// over the rounds; the least and the most of them tell the spread. Where it
// narrowly misses its gate more rounds are taken, a bounded number, and count
// like the first. Times alone mean nothing and are not reported.
//
// The peer S of the read paths is a sync.Map keyed by the full key (session,
// shape and name as strings), with the same keys.
package figures
