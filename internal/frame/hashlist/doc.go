// Package hashlist computes the digest list of large texts: the SHA-256 of each
// piece of them (R. C. Merkle, Protocols for public key cryptosystems, IEEE S&P
// 1980, cut to one level). Whoever hashes the list has hashed the text.
//
// One SHA-256 waits for itself: each round needs the one before. Pieces do not
// wait for each other, so two of them are computed at a time on one core, where
// the processor has the SHA extensions (S. Gulley et al., Intel SHA Extensions,
// 2013).
//
// All functions are pure and safe for concurrent use.
package hashlist
