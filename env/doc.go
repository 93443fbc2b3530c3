// Package env reads every environment variable that Kiln heeds, strictly, and
// is the only place that asks the operating system for one.
//
// Read takes one snapshot, a Settings, when something opens; nothing is read
// again later, so a value set through an API wins from then on (SPEC C9, T10).
// A value that does not follow its grammar is refused as a whole (of the
// constant cache's list: the one entry): the default stays, a Refusal says what
// was wrong and what would be right, and whoever opens the component logs it.
// Nothing is guessed: "12abc" is not 12, "-5" is not unlimited, and a refused
// value does not fall through to an older name of its variable. A variable that
// is set to the empty string is set, and so refused; the empty list of the
// constant cache is a list without entries.
//
// Table gives the same snapshot as rows for people and programs: name, value,
// source, default, help.
//
// Strays finds variables that begin as Kiln's do and are none of them, such as a
// misspelling, which would else be the default without a word. They are shown and
// warned of, and change nothing.
//
// Settings is a plain value owned by who asked for it; the functions are safe
// for concurrent use. Tests hand Read a Lookup of their own and never touch the
// environment of their process.
package env
