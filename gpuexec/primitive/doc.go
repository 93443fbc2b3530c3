// Package primitive describes compute primitives, gives them their keys, and
// creates them and their descriptors through the artefact cache.
//
// # Keys
//
// A Spec holds everything that decides which primitive a backend makes: the
// operation with its tensors, the attributes with every nested field, the
// implementation asked for, hints, and where it is to run (SPEC K4). Its
// canonical encoding is the key: hash, equality and the form on disk all come
// from those bytes (K1), and what cannot change the result, the stride of a
// dimension of size 1, is not in them (K3). A 64-bit hash places a key and
// never identifies it (K2).
//
// # Descriptors and primitives
//
// A Library lists its implementations for a request; an Engine is a library on
// one device in front of an artefacts.Cache. A primitive is an entry of that
// cache under its key and the identity of its library, so that two libraries or
// two builds may share a cache. Where a process opens one build several times and each
// opening runs its own primitives only, the Library has a Number, which counts too. A
// primitive owns its Descriptor, and every caller that asks
// for the descriptor gets that one (D2). A descriptor that was asked for without a
// primitive is an entry of the same cache, under the primitive's key with a mark
// behind it (D3): it counts against the same capacity, capacity 0 disables it
// too, and it is evicted in its turn like any other. A primitive made
// later takes that very descriptor and the place of its entry: the two are one
// entry from then on. If the primitive fails, the descriptor's entry is as it was.
// While a caller holds a descriptor whose entry was evicted for others, a request for its
// key finds it and gives it an entry again (SPEC C13), if the same Engine is asked.
//
// Implementations are numbered anew for every request, from the library's list
// and the request's skip list alone, whatever is resident (D1). The
// lane of a session's name (G6) is no part of a request nor of a descriptor, so
// that forward and backward may run on different workers (D7).
//
// # Ordering and concurrency
//
// Engines, descriptors, leases and keys are safe for concurrent use; Specs are
// plain values that their builder owns, and an Engine reads one only until the
// call returns. A descriptor's hit takes no lock and allocates nothing. Whatever
// overlaps, one request builds one descriptor: a descriptor waits for its
// primitive if that is being made, and a primitive for its descriptor. Nothing
// here starts a goroutine.
//
// # Failure
//
// What a library returns as its error, or panics with, reaches every caller that
// waited, and is not kept. A primitive that fails does not fail a descriptor: that is then
// built alone. A key that cannot be made, for an input without a digest, makes
// an artefact for that call alone (K6).
package primitive
