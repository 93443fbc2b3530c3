package constants

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// T7: a caller that leaves before it is answered has no hold on what it would have
// waited for.
func TestLeavingBeforeTheAnswer(t *testing.T) {
	var inHash atomic.Pointer[func()]
	_, e := open(t, Config{Hash: func(string) uint64 {
		if f := inHash.Load(); f != nil {
			(*f)()
		}
		return 7
	}})
	o := add(t, e, "k", 1, Options{})
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan struct{})
	var hashed atomic.Int32
	f := func() {
		if hashed.Add(1) == 2 { // first by the caller, then in the turn
			leave()
			<-left
		}
	}
	inHash.Store(&f)
	_, err := e.GetOrAdd(ctx, key("k"), 1, Options{})
	inHash.Store(nil)
	close(left)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("who left: %v", err)
	}
	freed := make(chan struct{})
	l, err := o.Fulfil("v", 1, func() { close(freed) })
	if err != nil {
		t.Fatal(err)
	}
	if there, err := e.Remove(context.Background(), key("k")); !there || err != nil {
		t.Errorf("removed %v, %v", there, err)
	}
	l.End()
	select {
	case <-freed:
	case <-time.After(10 * time.Second):
		t.Error("held by one who left")
	}
}

// T3, T6: the context to compute under ends with the ownership, however that ends.
func TestContextEndsWithTheOwnership(t *testing.T) {
	_, e := open(t, Config{})
	for how, end := range map[string]func(*Promise) error{
		"fulfilled": func(o *Promise) error {
			l, err := o.Fulfil("v", 1, nil)
			if err == nil {
				l.End()
			}
			return err
		},
		"failed":    func(o *Promise) error { o.Fail(errors.New("no")); return nil },
		"abandoned": func(o *Promise) error { o.Abandon(); return nil },
	} {
		o := add(t, e, how, 1, Options{})
		ctx := o.Context()
		if err := ctx.Err(); err != nil {
			t.Errorf("%s: ended before: %v", how, err)
		}
		if err := end(o); err != nil || !errors.Is(ctx.Err(), context.Canceled) {
			t.Errorf("%s: %v, then its context says %v", how, err, ctx.Err())
		}
	}
}
