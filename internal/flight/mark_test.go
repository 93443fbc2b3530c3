package flight

import (
	"context"
	"sync/atomic"
	"testing"
)

// asked is a context that counts for what it is asked.
type asked struct {
	context.Context
	times *atomic.Int64
}

func (a asked) Value(key any) any {
	a.times.Add(1)
	return a.Context.Value(key)
}

// F5, F6: what a room marks a creator with is found below it at any depth, without asking the
// contexts between, and there are as many marks as keys.
func TestMarks(t *testing.T) {
	var times atomic.Int64
	ctx := With(asked{context.Background(), &times}, "before", -1)
	for i := range 1000 {
		f := New[int](asked{ctx, &times}, "room", "key")
		f.Mark("own", i)
		ctx = f.Context()
		if i%3 == 0 {
			ctx = With(ctx, "third", i)
		}
		if i%7 == 0 {
			ctx = f.Own(ctx)
		}
	}
	ctx = With(ctx, "before", 1000)
	times.Store(0)
	for key, want := range map[any]any{"before": 1000, "own": 999, "third": 999, "absent": nil} {
		if got := Marked(asked{ctx, &times}, key); got != want {
			t.Errorf("%v: %v, want %v", key, got, want)
		}
	}
	if n := times.Load(); n != 4 {
		t.Errorf("%d contexts were asked for four marks", n)
	}
	many := 0
	for m := identityOf(ctx).marks; m != nil; m = m.more {
		many++
	}
	if many != 3 {
		t.Errorf("%d marks of three keys", many)
	}
	if Marked(context.Background(), "own") != nil {
		t.Error("a mark of nobody's")
	}
}

// F5: marks alone make no creator: nobody waits on their behalf.
func TestMarksOfACaller(t *testing.T) {
	ctx := With(context.Background(), "key", 1)
	f := New[int](ctx, "room", "key")
	f.Start()
	if f.HasEdges() || Within(ctx, "room", "key") || Inside(ctx, "room") {
		t.Error("a caller is taken for a creator")
	}
	if Marked(f.Context(), "key") != 1 {
		t.Error("the flight has no mark of its caller")
	}
	own := New[int](ctx, "room", "other")
	if ctx = own.Own(ctx); len(identityOf(ctx).nodes) != 1 || Marked(ctx, "key") != 1 {
		t.Error("what is owned has lost the mark")
	}
	f.Finish(1, nil, nil)
	own.Finish(1, nil, nil)
	f.GetOff()
}
