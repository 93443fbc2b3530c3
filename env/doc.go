// Package env reads every environment variable that Kiln heeds, strictly, and
// is the only place that asks the operating system for one.
//
// Read takes one snapshot, a Settings, when a runtime opens. Nothing is read
// later, so a value that is set through an API wins from then on (SPEC C9, T10).
//
// A value that does not follow its grammar is refused as a whole; in the list of
// the constant cache, only the wrong entry is. The default stays, and a Refusal says
// what was wrong and what would be right; the code that opens the runtime logs it.
// Nothing is guessed: "12abc" is not 12, "-5" is not unlimited, and a refused value
// does not make an older name of its variable count. A variable that is set to the
// empty string is set, and so refused; an empty list of the constant cache is a list
// without entries.
//
// Table gives the same snapshot as rows for people and programs: name, value,
// source, default, help.
//
// Strays finds variables that begin with KILN_ and that Kiln does not read, such as
// a misspelt one, and names that are nearly those of oneDNN's that it reads. They are
// shown and warned of, and change nothing.
//
// Settings is a plain value that belongs to its caller. The functions are safe for
// concurrent use. Tests give Read a Lookup of their own and never touch the
// environment of their process.
package env
