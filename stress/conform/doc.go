// Package conform is `kiln conform`: it runs conformance scripts against the
// real components and reports.
//
//	script    the language: pure
//	outside   what a script fakes: creators, clock, identity, faults, driver, files
//	engine    cases, threads, processes, tables of verbs
//	rooms     one file for each kind of component, which binds it to its room
//	conform   the command and the list of expected failures
//
// testdata/scripts are the scripts of the specification, testdata/own those of
// this project for what they leave open.
//
// A program that calls Main has to let it see the command line of a script's
// process: Main starts the same binary with Command.Self before its arguments.
package conform
