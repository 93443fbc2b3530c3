// Command rules holds the project to docs/SPEC.md, in both directions. It lists
// the rules that no conformance script cites (rules= of a case under
// stress/conform/testdata) and no comment in a test cites (// F6, // F6, F7: or
// SPEC F6 in a sentence). It also lists the citations, in comments of products
// and tests, scripts and documents, of rules and sections that do not exist. If
// it lists anything it exits with 1.
//
// pending.txt has the rules whose time has not come, each with its reason. A
// pending rule that is cited is wrong too, so that the list can only shrink.
//
//	go run ./internal/rules [ROOT]
//	go run ./internal/rules -where F6     # the places that cite a rule
package main
