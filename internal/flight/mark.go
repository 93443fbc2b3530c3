package flight

import "context"

// identity is what contexts carry of flights.
type identity struct {
	nodes []*node // on whose behalf the code runs, see identityOf
	marks *mark   // what rooms have noted on the way here
}

// mark is what a room has noted for the code under a context, before others.
type mark struct {
	key, value any
	more       *mark
}

// with is m and one more, in the place of that of the same key: so a chain of creators has as
// many marks as there are keys, however long it is.
func (m *mark) with(key, value any) *mark { return &mark{key, value, m.without(key)} }

func (m *mark) without(key any) *mark {
	switch {
	case m == nil:
		return nil
	case m.key == key:
		return m.more
	}
	if more := m.more.without(key); more != m.more {
		return &mark{m.key, m.value, more}
	}
	return m
}

// Marked gives what Mark or With has noted last by key on the way to ctx, or nil. That costs as
// much as there are keys, where ctx.Value would ask every context of every creator on the way.
func Marked(ctx context.Context, key any) any {
	id := identityOf(ctx)
	if id == nil {
		return nil
	}
	for m := id.marks; m != nil; m = m.more {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// With is ctx with a mark, which flights begun under it have, too. key is as for a map.
func With(ctx context.Context, key, value any) context.Context {
	id := identity{}
	if before := identityOf(ctx); before != nil {
		id = *before
	}
	id.marks = id.marks.with(key, value)
	return context.WithValue(ctx, identityKey{}, &id)
}

// Mark is With for the context of the flight. Before anybody has that.
func (f *Flight[V]) Mark(key, value any) { f.life.id.marks = f.life.id.marks.with(key, value) }
