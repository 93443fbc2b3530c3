package reads

import (
	"context"

	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// Loaded is a session that holds every value of the requests. Its methods named
// after a way to ask are Finders. What a request holds (views of groups, references)
// is looked up again by Restore, as a model's run would. It is safe for concurrent
// use, but for Restore and Redrawn.
type Loaded struct {
	Requests *Requests
	Session  *sessioncache.Session

	// By request.
	IDs    []sessioncache.NameID
	Groups []sessioncache.View
	Refs   []sessioncache.Ref
}

// Load fills a session that has room for this many groups more. The caller closes
// the session.
func Load(ctx context.Context, r *Requests, room int) (*Loaded, error) {
	s, err := sessioncache.Open(sessioncache.Config{Name: Session, Groups: sessioncache.LimitOf(int64(r.Groups + room))})
	if err != nil {
		return nil, err
	}
	l := &Loaded{Requests: r, Session: s}
	for i := range Names {
		s.Intern(NameOf(i)) // what is stored shares these
	}
	for place := range r.Values {
		if err := l.Set(ctx, r.Shapes[place/Names], &r.Values[place]); err != nil {
			return nil, err
		}
	}
	return l, l.Redrawn(ctx)
}

// Redrawn looks up what the requests hold, which are others than before.
func (l *Loaded) Redrawn(ctx context.Context) error {
	n := len(l.Requests.Places)
	l.IDs, l.Groups, l.Refs = make([]sessioncache.NameID, n), make([]sessioncache.View, n), make([]sessioncache.Ref, n)
	for i, name := range l.Requests.AskedNames {
		l.IDs[i] = l.Session.Intern(name)
	}
	return l.Restore(ctx)
}

// Set stores a value under its name.
func (l *Loaded) Set(ctx context.Context, shape shapegroups.Shape, v *Value) error {
	return l.Session.Set(ctx, shape, v.Key.Name, sessioncache.Value{Any: v}, sessioncache.Options{})
}

// Restore puts back what was evicted of the requests' values. It tries several
// times, since what comes back may evict another value.
func (l *Loaded) Restore(ctx context.Context) error {
	const tries = 8
	for range tries {
		if missing, err := l.restore(ctx); missing == 0 || err != nil {
			return err
		}
	}
	return nil
}

func (l *Loaded) restore(ctx context.Context) (missing int, err error) {
	for i, place := range l.Requests.Places {
		if l.Refs[i].Resident() {
			continue
		}
		missing++
		shape := l.Requests.Shapes[place/Names]
		if _, ok := l.Session.Lookup(shape, l.Requests.AskedNames[i], 0); !ok {
			if err := l.Set(ctx, shape, &l.Requests.Values[place]); err != nil {
				return missing, err
			}
		}
		l.Groups[i], _ = l.Session.View(shape)
		l.Refs[i], _ = l.Groups[i].Lookup(l.Requests.AskedNames[i], 0)
	}
	return missing, nil
}

// Held asks whether what a request holds is still resident.
func (l *Loaded) Held(from, to int) (found int) {
	for i := range l.Refs[from:to] {
		if l.Refs[from+i].Resident() {
			found++
		}
	}
	return found
}

// ByID asks a group for an interned name.
func (l *Loaded) ByID(from, to int) (found int) {
	ids := l.IDs[from:to]
	for i, g := range l.Groups[from:to] {
		if _, ok := g.LookupID(ids[i]); ok {
			found++
		}
	}
	return found
}

// ByName asks a group for a name.
func (l *Loaded) ByName(from, to int) (found int) {
	names := l.Requests.AskedNames[from:to]
	for i, g := range l.Groups[from:to] {
		if _, ok := g.Lookup(names[i], 0); ok {
			found++
		}
	}
	return found
}

// ByKey asks the session by shape and name.
func (l *Loaded) ByKey(from, to int) (found int) {
	names := l.Requests.AskedNames[from:to]
	for i, shape := range l.Requests.AskedShapes[from:to] {
		if _, ok := l.Session.Lookup(shape, names[i], 0); ok {
			found++
		}
	}
	return found
}

// ByDims is ByKey with the shape made of its dimensions for each lookup.
func (l *Loaded) ByDims(from, to int) (found int) {
	names := l.Requests.AskedNames[from:to]
	for i, dims := range l.Requests.AskedDims[from:to] {
		shape, err := shapegroups.Of(dims)
		if err != nil {
			continue // counts as a miss
		}
		if _, ok := l.Session.Lookup(shape, names[i], 0); ok {
			found++
		}
	}
	return found
}
