// Command rules lists the rules of the specification that nothing holds the
// project to: no conformance script cites them (rules= of a case under
// stress/conform/testdata) and no comment in a test does (// F6, // F6, F7: or
// SPEC F6 in a sentence). It prints each with what is wrong and exits with 1.
//
// rules.txt is every rule there is; pending.txt is those whose time has not
// come, each with its reason. A pending rule that is cited is wrong too, so
// that the list can only shrink.
//
//	go run ./internal/rules [ROOT]
package main
