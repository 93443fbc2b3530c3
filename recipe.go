package kiln

import (
	"context"
	"reflect"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/artefacts"
)

// DefaultBackend is the backend of a recipe that names none. It stands for
// compilers that are part of the program: what they make is stored in the folder
// of this name, together with a digest of the running executable, and is loaded
// by the same executable alone, where the processor has what Made.Requires says. A
// program that was built anew compiles anew.
const DefaultBackend = "go"

// Made is a value with what the caches have to know of it: what a Recipe makes,
// what Set puts under a name, what Take gives back.
type Made[T any] struct {
	Value T
	Bytes int64         // memory that the value holds, for every capacity in bytes; 0 or more
	Cost  time.Duration // what it took to make; 0 = as measured

	// Free, if not nil, releases what the value holds outside of Go's memory. It is
	// called exactly once, after the last use, on any goroutine. Where it closes another
	// session, it is to bound the waiting by a context; see Session.Close.
	Free func()

	// Blob, if not nil, gives the value as bytes that Recipe.Load understands. It
	// is called off the caller's path while the value is in use.
	Blob func(context.Context) ([]byte, error)

	// Requires lists the instruction sets without which the blob must not be loaded.
	// Their names are those of the device's Identity.ISA or, where the backend is no
	// device's, those that Linux has for the processor ("avx2"). nil = not known, so
	// all that are present; empty = none.
	Requires []string

	key    string // of what Take gave, for Set
	leased bool   // from a cache that counts its bytes for the memory limit
}

// Recipe says what an artefact is and how it is made.
//
// Make and Load are given a context that carries the identity of the computation:
// they hand it on to whatever they ask Kiln for, so that a circle of recipes that
// wait for each other is found (ErrCycle). When nobody waits for the artefact any
// more, the context ends after Config.Linger, or Linger of the call. An error, a
// panic and a runtime.Goexit of Make reach every caller that waits, and nothing is
// kept.
type Recipe[T any] struct {
	// Key is the canonical key of the artefact: all that can change the result, and
	// nothing else. Equal keys are one artefact, whatever name, group, session or
	// lane asks. It must not be empty. One of more than 1 MiB is not stored
	// (blobstore.LongestKey).
	Key string

	// Backend is the folder of the store, and part of errors; empty =
	// DefaultBackend. Where a device's backend has that name, what is stored must
	// fit the device; else it must fit the running executable and the processor.
	Backend string

	// Unhashable names an input of Make that Key cannot cover, such as a file that
	// cannot be read. The artefact is then made for this call alone: it is good
	// until the group is closed, and neither named, shared nor stored.
	Unhashable string

	// Make makes the artefact.
	Make func(context.Context) (Made[T], error)

	// Load, if not nil, makes the artefact from the bytes that Made.Blob gave, in
	// this process or an earlier one; they were verified, and are Load's own. An error
	// or a panic means that the bytes are of no use: it goes to Config.Logger, what is
	// stored is set aside, and the artefact is made anew. Without Load nothing is stored.
	Load func(ctx context.Context, blob []byte) (Made[T], error)
}

// request is the recipe as the artefact cache takes it.
func (r *Recipe[T]) request() artefacts.Request {
	create, load := r.Make, r.Load
	q := artefacts.Request{Key: r.Key, Backend: r.Backend, Unhashable: r.Unhashable}
	if q.Backend == "" {
		q.Backend = DefaultBackend
	}
	if create != nil {
		q.Create = func(ctx context.Context) (artefacts.Built, error) {
			m, err := create(ctx)
			return m.built(), err
		}
	}
	if load != nil {
		q.Load = func(ctx context.Context, blob []byte) (artefacts.Built, error) {
			m, err := load(ctx, blob)
			return m.built(), err
		}
	}
	return q
}

func (m Made[T]) built() artefacts.Built {
	return artefacts.Built{Value: m.Value, Bytes: m.Bytes, Cost: m.Cost, Free: m.Free, Blob: m.Blob, Requires: m.Requires}
}

// Option says more about one call. The zero Option says nothing. Options cost a
// hit no allocation.
type Option struct {
	set   options
	given option
}

type options struct {
	owner  string
	lane   Lane
	linger time.Duration
}

type option uint8

const (
	withOwner option = 1 + iota
	withLane
	withLinger
)

// Owner credits the name to an owner, an executor for instance, so that
// Session.Reset can drop all that the owner has. Look-ups do not heed it.
func Owner(name string) Option { return Option{set: options{owner: name}, given: withOwner} }

// OnLane binds the name to a lane: a worker whose value no other worker may use.
// Name and lane together are what a value is found by; without a lane it is shared.
// Worker gives a worker's lane. An artefact is still shared by its key: put the lane
// into Recipe.Key where the artefact must not be.
func OnLane(lane Lane) Option { return Option{set: options{lane: lane}, given: withLane} }

// Linger is how long the making of an artefact goes on when every caller that
// waited for it has left, in place of Config.Linger. What is made is kept, so that
// callers with deadlines shorter than a compile get further with each try. A negative
// time is none everywhere: the context ends at once. 0, or not given, is:
//
//	this option, given     none: Linger(0) asks for it
//	this option, not given Config.Linger
//	Config.Linger          1 minute
//	gpuexec.Config         1 minute; the runtime gives its Config.Linger
//	gpuexec.Source         that of gpuexec.Config
//	artefacts.Config       none; the runtime gives its Config.Linger
//	artefacts.Request      that of artefacts.Config
//	constants.Config       none; the runtime gives its Config.Linger
//	constants.Options      that of constants.Config
//	sessioncache.Config    none, also in a runtime: what artefacts linger is enough
//	sessioncache.Options   that of sessioncache.Config
func Linger(d time.Duration) Option {
	if d <= 0 {
		d = -1 // 0 is "not given" to the rooms
	}
	return Option{set: options{linger: d}, given: withLinger}
}

// settle puts options together; of two of a kind the later one counts.
func settle(all []Option) (s options) {
	for i := range all {
		switch o := &all[i]; o.given {
		case withOwner:
			s.owner = o.set.owner
		case withLane:
			s.lane = o.set.lane
		case withLinger:
			s.linger = o.set.linger
		}
	}
	return s
}

// as gives a value that a cache held as a T. A nil is the zero value of any T
// that is an interface.
func as[T any](v any) (t T, ok bool) {
	if t, ok = v.(T); !ok && v == nil {
		ok = reflect.TypeFor[T]().Kind() == reflect.Interface
	}
	return t, ok
}

// want says that what is called by this name is no T.
func want[T any](op, what, name string, v any) error {
	return fault.Invalidf(op, "%s %q holds a value of type %T, not %v: ask for that type, or use another name",
		what, name, v, reflect.TypeFor[T]())
}
