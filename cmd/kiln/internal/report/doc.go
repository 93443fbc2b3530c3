// Package report holds what `kiln run` tells: the JSON that scripts read, the
// table and the picture that people look at, and the progress line while it
// works.
//
// Run and Pass are the JSON contract; every field is always there. A Recorder
// takes one sample for each request while a pass runs, and is where latency
// percentiles (exact, by nearest rank) and the curves of the picture come from.
//
// A Recorder may be written to from several goroutines, each place by one of
// them; everything else is owned by one goroutine.
package report
