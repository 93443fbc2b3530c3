package encoder

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/kiln-cache/kiln"
)

// A caller that has left has its ids back while their batch is computed still for the other
// calls in it: what it writes there then is not read. The batch does not fail, which would
// have each text of it computed once more, alone and so in another shape.
func TestIdsOfACallerThatLeft(t *testing.T) {
	ctx := context.Background()
	leaving, leave := context.WithCancel(ctx)
	left := make(chan struct{})
	var shapes []kiln.Shape // of the kernels that were asked for
	e := openTiny(t, Config{Workers: 1}, kiln.Config{Listen: func(told kiln.Event) {
		if told.Session == "" {
			return
		}
		if shapes = append(shapes, told.Shape); len(shapes) == 1 {
			leave()
			<-left
		}
	}})
	goes, stays := [][]int32{{6, 7, 8, 9}}, [][]int32{{1, 2, 3}, {4, 5}}
	m := busy(e) // so that both are in one batch
	answered := make(chan error)
	beside := newCall("texts", stays, nil, e.pool)
	go func() {
		_, err := e.EncodeTokens(leaving, goes)
		for i := range goes[0] {
			goes[0][i] = 1 << 30 // no id of the model
		}
		close(left)
		answered <- err
	}()
	waiting(e, 4)
	e.mu.Lock()
	e.mu.queue.push(beside)
	e.mu.Unlock()
	e.work(m, e.next(m, nil))
	if err := <-answered; !errors.Is(err, context.Canceled) {
		t.Errorf("the caller that left: %v", err)
	}
	<-beside.done
	if shapes = slices.Compact(shapes); beside.err != nil || len(shapes) != 1 {
		t.Errorf("the other: %v, shapes %v, want one", beside.err, shapes)
	}
	if want, err := e.EncodeTokens(ctx, stays); err != nil || !slices.EqualFunc(beside.out, want, slices.Equal[[]float32]) {
		t.Errorf("the other: %v, %v, want %v", beside.out, err, want)
	}
}
