// Package encoder runs an encoder's op list through Kiln: the session finds the
// prepared artefact of every operation, the constant cache its weights, and the
// executor runs the sequence. It is what `kiln run` drives with a trace.
//
// # Who owns what
//
// A Weights has the prepared tensors of one model for one model handle; several
// share them through the constant cache, unless that bypasses them. A Model is
// one handle: it belongs to one session, keeps the plan of the shape it ran last
// with held references to that shape's artefacts, and one arena of device
// memory for activations.
//
// # Concurrency
//
// A Model is owned by one goroutine. Different Models run side by side.
package encoder
