// Package engine runs the cases of conformance scripts against components.
//
// A Kind opens components; a Component answers verbs listed in a table, with the
// number of words and the options that each takes, so that whatever a script
// says beyond that fails its case. Results are words and fields; an error
// becomes `error WORD` by errors.Is in one place (see Answer).
//
// One case runs in one goroutine plus one for each thread of the script. The
// statements of a thread run in order in its own goroutine. The first mismatch
// ends the case. A script's processes are processes: the same binary, which
// hands its command line to Serve.
//
// Kinds and components have to be safe for concurrent use.
package engine
