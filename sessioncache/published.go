package sessioncache

import (
	"sync/atomic"

	"github.com/kiln-cache/kiln/internal/policy"
	"github.com/kiln-cache/kiln/internal/sums"
	"github.com/kiln-cache/kiln/internal/table"
	"github.com/kiln-cache/kiln/shapegroups"
	"github.com/kiln-cache/kiln/shapegroups/advice"
)

// Capacity is what a session may hold.
type Capacity struct {
	Groups Limit // shape groups
	Bytes  Limit // of all values
}

// published is the part of the state that readers walk: the tables are the
// state, it is not kept twice. Only the actor writes it.
type published struct {
	bucket shapegroups.Bucketing
	hash   func(string) uint64
	frees  *frees             // the shell's: the core only hands it on
	tell   func(message) bool // the shell's: tells the actor
	lent   func(*node) func() // the shell's: gives a pin back that another name has, its Free

	shapes *table.Table[group]  // registered groups by compiled shape
	ids    *table.Table[NameID] // interned names
	memo   *table.Table[notes]  // shapes asked lately, where bucketing changes them

	limits                 atomic.Pointer[Capacity]
	groups, objects, bytes atomic.Int64

	misses, failures, evictions, warnings atomic.Uint64
	untold                                atomic.Uint64 // evictions of which nobody was told
	keyHits                               atomic.Uint64 // those that the log kept
	running                               atomic.Int64  // creators, those of ended flights included
	useful, padded                        atomic.Int64
	unkept                                struct{ useful, padded sums.Total } // of acquisitions that the log did not keep

	tallies atomic.Pointer[tally] // all that were made
	spare   [len(places)][]*tally // of groups that have gone; the actor's
}

// memoized bounds the memo; when it is full it begins anew. A shape that is not
// in it costs its bucketing, once.
const memoized = 1 << 12

func newPublished(c Config, f *frees) *published {
	p := &published{
		bucket: c.Bucket,
		hash:   c.Hash,
		frees:  f,
		shapes: table.NewSparse[group](c.Hash),
		ids:    table.New[NameID](c.Hash),
		lent:   func(n *node) func() { return func() { unpin(n) } },
		memo:   table.New[notes](c.Hash),
	}
	p.limits.Store(&Capacity{Groups: c.Groups, Bytes: c.Bytes})
	return p
}

func (p *published) capacity() Capacity { return *p.limits.Load() }

// hashOf is the hash of a shape in the tables of shapes, placed that of a name in those
// of names. Config.Hash is user code: not in a turn.
func (p *published) hashOf(s shapegroups.Shape) uint64 {
	if p.hash != nil {
		return p.hash(s.Key())
	}
	return s.Hash()
}

func (p *published) placed(key string) uint64 { return p.shapes.Hash(key) }

// lookup is resident with a shape that nobody has placed yet: not in a turn.
func (p *published) lookup(compiled shapegroups.Shape) *group {
	return p.resident(compiled, p.hashOf(compiled))
}

// resident is the registered group of a compiled shape, or nil.
func (p *published) resident(compiled shapegroups.Shape, hash uint64) *group {
	if at := p.shapes.Hashed(hash, compiled.Key(), 0); at != nil {
		return &at.Value
	}
	return nil
}

// next is the registered group of g's shape, which may be g, or nil.
func (p *published) next(g *group) *group { return p.resident(g.shape, g.at.Hash()) }

// all lists the registered groups, for anybody.
func (p *published) all() (groups []*group) {
	p.shapes.All(func(at *table.Node[group]) bool {
		groups = append(groups, &at.Value)
		return true
	})
	return groups
}

// notes are those of one shape, by how its group is asked for.
type notes [3]asked

const (
	byLookup = iota // for itself, for a name that is absent, or to write
	byKey           // for a name that is there
	byAcquire
)

// The kinds of notes, which the log counts where it cannot keep them.
const (
	noHit = iota
	keyHit
)

func newNotes(a asked) notes {
	n := notes{a, a, a}
	n[byKey].found, n[byAcquire].acquired = true, true
	return n
}

// find gives the registered group for a shape as asked, and its notes. The group is
// nil where there is none; the notes are nil too where they would have to be made:
// see note.
func (p *published) find(shape shapegroups.Shape) (*group, *notes) {
	if p.bucket.Exact() {
		g := p.lookup(shape)
		if g == nil {
			return nil, nil
		}
		return g, &g.asked
	}
	if at := p.memo.Hashed(p.hashOf(shape), shape.Key(), 0); at != nil {
		use := &at.Value[byLookup]
		return p.resident(use.compiled, use.placed), &at.Value
	}
	return nil, nil
}

// note makes the notes of a shape that is neither resident nor in the memo.
func (p *published) note(shape shapegroups.Shape) (*notes, error) {
	compiled, err := p.bucket.Map(shape)
	if err != nil {
		return nil, err
	}
	n := newNotes(asked{shape: shape, compiled: compiled, hash: p.hashOf(shape), placed: p.hashOf(compiled)})
	return &n, nil
}

// remember enters a note into the memo, for the readers to come.
func (p *published) remember(use *asked) {
	if p.bucket.Exact() || p.memo.Hashed(use.hash, use.shape.Key(), 0) != nil {
		return
	}
	if p.memo.Len() >= memoized {
		p.memo.Clear()
	}
	at := p.memo.HashedNode(use.hash, use.shape.Key(), 0)
	at.Value = newNotes(asked{shape: use.shape, compiled: use.compiled, hash: use.hash, placed: use.placed})
	p.memo.Put(at)
}

// newGroup makes an empty group that nobody sees yet.
func (p *published) newGroup(compiled shapegroups.Shape, hash uint64) *group {
	at := p.shapes.HashedNode(hash, compiled.Key(), 0)
	g := &at.Value
	g.names = table.New[entry](p.hash)
	g.of, g.at, g.shape = p, at, compiled
	g.asked = newNotes(asked{shape: compiled, compiled: compiled, hash: hash, placed: hash})
	p.counted(g)
	return g
}

// asked is one way a group is asked for, the same note for every such request.
type asked struct {
	shape    shapegroups.Shape // as asked
	compiled shapegroups.Shape // after bucketing
	hash     uint64            // of the key of shape, as tables place it
	placed   uint64            // likewise of compiled
	acquired bool              // by Acquire: a model run, which counts for padding and advice
	found    bool              // a name, by its full key: a hit

	policy *policy.Group // what the policy answered last; the actor's
}

// requests is what a session knows of its stream of requests. Pure; one writer.
type requests struct {
	padding  shapegroups.Padding
	acquired *advice.Recorder // the last acquisitions, for advice
	all      *advice.Recorder // lookups and writes too, for the thrash warning
}

// newRequests is for a capacity in groups, which is valid.
func newRequests(groups int) (requests, error) {
	acquired, err := advice.NewRecorder(advice.DefaultRequests, policy.Unlimited)
	if err != nil {
		return requests{}, err
	}
	all, err := advice.NewRecorder(0, groups)
	return requests{acquired: acquired, all: all}, err
}

// unnoted counts an acquisition that the log did not keep: a model runs all the same.
func (p *published) unnoted(use *asked) {
	p.unkept.useful.Add(use.shape.Elements())
	p.unkept.padded.Add(use.compiled.Elements())
}

// note takes one request in.
func (r *requests) note(use *asked, missed bool) {
	if use.acquired {
		r.padding.Add(use.shape, use.compiled)
		r.acquired.Note(use.shape, use.compiled, missed)
	}
	r.all.Note(use.shape, use.compiled, missed)
}
