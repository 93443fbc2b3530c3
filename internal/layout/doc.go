// Package layout is the bytes of a pipeline-cache file: a header with who made
// it, the SPIR-V of shaders, and the blob of a driver's own cache (SPEC V2).
//
// Numbers are little-endian. Every version of the format begins with the
// preamble, so that a reader of any version can tell a foreign version from
// damage:
//
//	magic      8 bytes
//	version    uint32
//	order      uint32, 0x01020304: a writer of another byte order shows here
//	total      uint64, bytes of the whole file
//	digest     32 bytes, SHA-256 of everything else in the header
//
// Version 1 goes on with
//
//	header     uint32, bytes of the header, preamble included
//	count      uint32, SPIR-V entries
//	spirv      uint64 bytes of the SPIR-V section, 32 bytes SHA-256 of it
//	blob       uint64 bytes of the driver blob, 32 bytes SHA-256 of it
//	unknown    uint32, one bit for each identity field that nobody could tell
//	opening    16 bytes, random where a bit of unknown is set, else zero
//	identity   the fields of Identity in its order: uint32, 16 bytes, or uint16
//	           length and bytes
//	SPIR-V section, driver blob
//
// The SPIR-V section is a row of entries, in strictly ascending order of shader,
// options and source digest:
//
//	size       uint32, bytes of SPIR-V, a multiple of 4 above 0
//	name       uint32, bytes of the shader's name, above 0
//	options    uint64
//	source     32 bytes, SHA-256 of the shader's source
//	name, SPIR-V
//
// So every byte is covered by a digest, and every content has one file only.
// Nothing behind the preamble is looked at before the header's digest is
// verified, no section before its own, and no length is believed: what is
// allocated is never more than what is there.
//
// All functions are pure and safe for concurrent use.
package layout
