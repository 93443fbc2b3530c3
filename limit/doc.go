// Package limit holds the one type for a capacity: a count, or no bound at all.
//
// Everywhere in Kiln a capacity is written as a plain decimal or as the word
// "unlimited", never as a number that stands for it (SPEC C1, G2). What the
// count counts (entries, groups, bytes, MiB) is said where a Limit is used.
// A Limit is an immutable value: safe for concurrent use and comparable.
package limit
