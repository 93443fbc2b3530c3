// Package frame is the format of kernel.bin: a compiled blob with the build that made
// it, its cost, a digest and a signature (SPEC P3, P15).
//
// Numbers are little-endian. Every version of the format begins with the
// preamble, so that a reader of any version can tell a foreign version from
// damage:
//
//	magic      8 bytes
//	version    uint32
//	total      uint64, bytes of the whole file
//	digest     32 bytes, SHA-256 over the bytes before it, the digest list of
//	           the bytes after it (package hashlist), and the key
//
// Version 1 goes on with
//
//	key        uint32, bytes of the key, which lies in key.bin
//	payload    uint64, bytes of the payload
//	signature  uint16, bytes of the signature block, 0 if there is none
//	created    int64, nanoseconds since 1970
//	cost       int64, nanoseconds that compiling took
//	identity   library, build, compiler, driver, device: uint16 length, bytes
//	requires   uint16 count, then as many strings: instruction sets needed
//	payload
//	signature  uint16 length and bytes of the key id, 64 bytes ed25519
//
// The signature covers the preamble with its digest left out, the SHA-256 of
// the key, the SHA-256 of the payload's digest list, and everything between
// preamble and payload.
//
// The digest is verified before anything after the preamble is decoded and before any
// length is believed. All functions are pure and safe for concurrent use.
package frame
