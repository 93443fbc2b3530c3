package encoder

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/forward"
)

// waiting returns when that many tokens wait.
func waiting(e *Encoder, tokens int) {
	for {
		e.mu.Lock()
		waits := e.mu.queue.tokens
		e.mu.Unlock()
		if waits == tokens {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// busy gives a worker's model, which nobody else has from then on.
func busy(e *Encoder) *forward.Model {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.awake()
}

// F8: Close answers calls that wait at once, though no worker is free.
func TestCloseEndsCallsThatWait(t *testing.T) {
	ctx := context.Background()
	e := openTiny(t, Config{Workers: 1}, kiln.Config{})
	m := busy(e)
	ended := make(chan error, 1)
	go func() {
		_, err := e.EncodeTokens(ctx, [][]int32{{1, 2}, {3}})
		ended <- err
	}()
	waiting(e, 3)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if err := e.Close(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("beside a worker that is busy: %v", err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, kiln.ErrClosed) || !strings.Contains(err.Error(), "the encoder is closed") {
			t.Errorf("%v, want ErrClosed of the encoder", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call waits still")
	}
	e.work(m, e.next(m, nil))
}

// mute is a context of somebody's own: once it has ended it does not say why, or panics.
type mute struct {
	context.Context
	done   chan struct{}
	panics bool
}

func (m mute) Done() <-chan struct{} { return m.done }

func (m mute) Err() error {
	select {
	case <-m.done:
		if m.panics {
			panic("asked")
		}
	default:
	}
	return nil
}

// F3, F8: whatever a context says of its end, a call that waits and Close end with an error.
func TestContextsWithoutAnError(t *testing.T) {
	for _, panics := range []bool{false, true} {
		e := openTiny(t, Config{Workers: 1}, kiln.Config{})
		m := busy(e)
		ctx := mute{context.Background(), make(chan struct{}), panics}
		ended := make(chan error, 1)
		go func() {
			defer func() {
				if v := recover(); v != nil {
					ended <- nil
				}
			}()
			_, err := e.EncodeTokens(ctx, [][]int32{{1, 2}, {3}})
			ended <- err
		}()
		waiting(e, 3)
		close(ctx.done)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("panics: %v; a call: %v", panics, err)
		}
		if waiting(e, 0); !panics {
			if err := e.Close(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("Close: %v", err)
			}
		}
		e.work(m, e.next(m, nil))
	}
}

// What waits for a caller that has left does not wait any more: nobody computes it.
func TestWhatWasLeftIsNotComputed(t *testing.T) {
	var shapes []kiln.Shape
	e := openTiny(t, Config{Workers: 1}, kiln.Config{Listen: func(told kiln.Event) {
		if told.Session != "" {
			shapes = append(shapes, told.Shape)
		}
	}})
	m := busy(e)
	ctx, leave := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := e.EncodeTokens(ctx, [][]int32{make([]int32, 20), make([]int32, 5)})
		ended <- err
	}()
	waiting(e, 25)
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	waiting(e, 0)
	e.work(m, e.next(m, nil))
	if len(shapes) > 0 {
		t.Errorf("%v was computed for nobody", shapes)
	}
	if got, err := e.EncodeTokens(context.Background(), [][]int32{{1, 2}, {3}}); err != nil || len(got) != 2 {
		t.Errorf("afterwards: %v, %v", got, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.mu.running) > 0 || len(e.mu.idle) != 1 {
		t.Errorf("%d batches are kept, %d workers are idle", len(e.mu.running), len(e.mu.idle))
	}
}

// F4: a call that leaves ends the batch in which it was alone, whichever worker has it, and no
// other.
func TestLeavingEndsItsBatch(t *testing.T) {
	for who := range 2 {
		e := openTiny(t, Config{Workers: 2}, kiln.Config{})
		var calls []*call
		var models []*forward.Model
		var turns []turn
		e.mu.Lock()
		for range 2 {
			c := newCall("texts", [][]int32{{1, 2, 3}}, nil, e.pool)
			e.mu.queue.push(c)
			calls, models, turns = append(calls, c), append(models, e.awake()), append(turns, e.take())
		}
		e.mu.Unlock()
		e.leave(calls[who], context.Canceled)
		for i, at := range turns {
			if ended := at.batch.ctx.Err() != nil; ended != (i == who) {
				t.Errorf("call %d leaves: the batch of call %d has ended: %v", who, i, ended)
			}
			e.work(models[i], at)
		}
		if stays := calls[1-who]; stays.err != nil || len(stays.out[0]) == 0 {
			t.Errorf("call %d leaves: the other one: %v, %v", who, stays.out, stays.err)
		}
	}
}

// The texts of one call are computed by as many workers as are idle.
func TestTextsOfACallOnAllWorkers(t *testing.T) {
	var mu sync.Mutex
	var shapes []kiln.Shape
	both := make(chan struct{})
	e := openTiny(t, Config{Workers: 2, Device: "pershape"}, kiln.Config{Listen: func(told kiln.Event) {
		if told.Session == "" {
			return
		}
		mu.Lock()
		if !slices.Contains(shapes, told.Shape) {
			if shapes = append(shapes, told.Shape); len(shapes) == 2 {
				close(both)
			}
		}
		mu.Unlock()
		select {
		case <-both:
		case <-time.After(10 * time.Second):
			t.Error("one worker computes, the other one is idle")
		}
	}})
	if got, err := e.EncodeTokens(context.Background(), [][]int32{make([]int32, 20), make([]int32, 13)}); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
}

// S8: of calls that wait, one that fits into a batch overtakes one that does not.
func TestWhatFitsOvertakes(t *testing.T) {
	e := openTiny(t, Config{Workers: 2}, kiln.Config{})
	var calls []*call
	e.mu.Lock()
	m := e.awake()
	for _, n := range []int{20, 16, 5} { // a batch has 32 tokens
		c := newCall("texts", [][]int32{make([]int32, n)}, nil, e.pool)
		e.mu.queue.push(c)
		calls = append(calls, c)
	}
	first := e.take()
	e.mu.Unlock()
	if b := first.batch.texts; len(b) != 2 || b[0].of != calls[0] || b[1].of != calls[2] {
		t.Errorf("%d texts are the first batch, want those of 20 and 5 tokens", len(b))
	}
	e.work(m, first)
	for _, c := range calls {
		if <-c.done; c.err != nil {
			t.Error(c.err)
		}
	}
}

// Where a batch is one text no shape is announced: the next text has one of its own.
func TestNothingIsAnnouncedWithoutPacking(t *testing.T) {
	e := openTiny(t, Config{Workers: 1}, kiln.Config{})
	e.mu.Lock()
	m := e.awake()
	e.mu.queue.packs = false
	c := newCall("texts", [][]int32{{1, 2}, {3}}, nil, e.pool)
	e.mu.queue.push(c)
	first := e.take()
	announced := e.mu.announced
	e.mu.Unlock()
	if len(first.batch.texts) != 1 || !announced.IsZero() {
		t.Errorf("%d texts are a batch, %v is announced", len(first.batch.texts), announced)
	}
	e.work(m, first)
	if <-c.done; c.err != nil {
		t.Error(c.err)
	}
}

// The runtime's setting says how many workers there are, an embedding of zeros has no length
// to be divided by, and what Info gives is the caller's.
func TestSettingsOfAnEncoder(t *testing.T) {
	t.Setenv("KILN_WORKERS", "5")
	e := openTiny(t, Config{Normalize: true}, kiln.Config{})
	if n := len(e.mu.idle); n != 5 {
		t.Errorf("%d workers, want 5", n)
	}
	if zeros := e.pool(make([]float32, e.info.Dimensions)); !slices.Equal(zeros, make([]float32, e.info.Dimensions)) {
		t.Errorf("an embedding of zeros is %v", zeros)
	}
	prompts := e.Info().Prompts
	was := prompts["query"]
	if prompts["query"] = "other"; was == "" || e.Info().Prompts["query"] != was {
		t.Errorf("the prompt %q is %q for the encoder, too", was, e.Info().Prompts["query"])
	}
}
