// Package tiers is the way of a miss below the artefact cache: verified blobs in
// memory, then the store on disk, then the right to build (SPEC P6). It
// implements artefacts.Store.
//
// The memory tier holds blobs that were read from the disk, verified, and taken
// by a driver; it is bounded in bytes, may forget anything at any time, and is
// no index of record. Its bytes count to the memory limit of the process, if there
// is one, and are the first to go: each blob lies on the disk. Only one
// actor writes to the cache library beneath it, which may drop and reorder writes of
// several; readers read it directly and compare the full key.
//
// Safe for concurrent use. A blob is never given to a driver that died on it
// before, nor, once its signer was revoked or given another key, out of memory.
package tiers
