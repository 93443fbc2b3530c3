// Package figures measures Kiln's hot paths as ratios to a peer in the same
// run, and holds them against their gates. It is what `kiln bench` prints.
//
// A figure is taken in rounds: each round measures the subject and its peer one
// after the other, so that what else the machine does meets both, and gives one
// ratio. The median over the rounds is the figure. Times alone mean nothing and
// are not reported.
//
// The peer S of the read paths is a sync.Map keyed by the full key (session,
// shape and name as strings), with the same keys.
package figures
