// Package script is the language of the conformance scripts: files, cases,
// statements, loops, expressions, and expectations with their matching.
//
// It is pure: no goroutine, clock, file or component. Parse splits a file into
// cases and statements by structure alone (threads, loops, wrapped statements);
// the words of a plain statement are read by Words after Expand has put in the
// loop's item and the thread's number, because an item may hold several words.
// A statement that cannot be read carries its error and fails the case that
// reaches it; only what belongs to no case is an error of the file.
//
// All types are immutable values once made and safe for concurrent use.
package script
