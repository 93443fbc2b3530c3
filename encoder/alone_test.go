package encoder

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
)

func openTiny(t *testing.T, c Config, k kiln.Config) *Encoder {
	t.Helper()
	ctx := context.Background()
	rt, err := kiln.Open(k)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(ctx, rt, "testdata/tiny", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(ctx), rt.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return e
}

// A text that comes while others wait is not computed in their stead, though a worker is idle.
func TestOneTextBehindOthers(t *testing.T) {
	ctx := context.Background()
	e := openTiny(t, Config{Workers: 2}, kiln.Config{})
	one := [][]int32{make([]int32, 20)} // two of which are no batch
	want, err := e.EncodeTokens(ctx, one)
	if err != nil {
		t.Fatal(err)
	}
	others := newCall("texts", [][]int32{make([]int32, 20), make([]int32, 20)}, nil, e.pool)
	e.mu.Lock()
	e.mu.queue.push(others) // whose workers have not come yet
	e.mu.Unlock()
	if got, err := e.EncodeTokens(ctx, one); err != nil || !slices.Equal(got[0], want[0]) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	<-others.done
	if others.err != nil || len(others.out[1]) == 0 {
		t.Errorf("%v, %v", others.out, others.err)
	}
}

// A caller that computes its own text leaves in the middle, and its worker goes on.
func TestOneTextIsLeft(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	var c *call
	e := openTiny(t, Config{Workers: 1}, kiln.Config{Listen: func(told kiln.Event) {
		if told.Session != "" { // it has asked for its first kernel
			cancel()
			<-c.done
		}
	}})
	ids := [][]int32{{1, 2, 3}}
	c = newCall("texts", ids, nil, e.pool)
	if err := e.submit(ctx, c); !errors.Is(err, context.Canceled) || c.out[0] != nil {
		t.Errorf("%v, %v", c.out, err)
	}
	if got, err := e.EncodeTokens(context.Background(), ids); err != nil || len(got[0]) == 0 {
		t.Errorf("afterwards: %v, %v", got, err)
	}
}

// A caller that computes its own text has it before the next one is computed.
func TestOneTextIsAllThatItsCallerComputes(t *testing.T) {
	var e *Encoder
	var next *call
	var once sync.Once
	var shape kiln.Shape
	returned := make(chan struct{})
	e = openTiny(t, Config{Workers: 1}, kiln.Config{Listen: func(told kiln.Event) {
		if told.Session == "" {
			return
		}
		once.Do(func() {
			shape = told.Shape
			e.mu.Lock()
			defer e.mu.Unlock()
			e.mu.queue.push(next)
		})
		if told.Shape != shape {
			select {
			case <-returned:
			case <-time.After(10 * time.Second):
				t.Error("the caller computes the next text, too")
			}
		}
	}})
	next = newCall("texts", [][]int32{make([]int32, 20)}, nil, e.pool)
	if _, err := e.EncodeTokens(context.Background(), [][]int32{{1, 2, 3}}); err != nil {
		t.Error(err)
	}
	close(returned)
	if <-next.done; next.err != nil || len(next.out[0]) == 0 {
		t.Errorf("%v, %v", next.out, next.err)
	}
}

// Where a listener ends the goroutine that computes, no worker is lost: later texts are
// computed, and whoever waits is told.
func TestListenerEndsTheGoroutine(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for n := 1; n <= 2; n++ {
		var once sync.Once
		e := openTiny(t, Config{Workers: 1}, kiln.Config{Logger: slog.New(slog.DiscardHandler), Listen: func(told kiln.Event) {
			if told.Session != "" {
				once.Do(runtime.Goexit)
			}
		}})
		texts := slices.Repeat([][]int32{{1, 2, 3}}, n)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, err := e.EncodeTokens(ctx, texts)
			if n == 1 { // it was this goroutine
				t.Errorf("one text: %v", err)
			} else if !errors.Is(err, kiln.ErrGoexit) {
				t.Errorf("%d texts: %v", n, err)
			}
		}()
		<-ended
		if got, err := e.EncodeTokens(ctx, texts); err != nil || len(got[0]) == 0 {
			t.Fatalf("%d texts, afterwards: %v", n, err)
		}
	}
}

// A runtime that is closed before its encoder, while texts are computed, ends their calls and
// not the process: the memory of its devices goes.
func TestRuntimeClosedBesideTexts(t *testing.T) {
	ctx := context.Background()
	for round := range 20 {
		rt, err := kiln.Open(kiln.Config{})
		if err != nil {
			t.Fatal(err)
		}
		e, err := Open(ctx, rt, "testdata/tiny", Config{Workers: 1 + round%3})
		if err != nil {
			t.Fatal(err)
		}
		var callers sync.WaitGroup
		for range 6 {
			callers.Go(func() {
				for {
					got, err := e.EncodeTokens(ctx, [][]int32{{1, 2, 3}})
					if errors.Is(err, kiln.ErrClosed) {
						return
					}
					if err != nil || len(got[0]) == 0 {
						t.Errorf("%v, %v", got, err)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round%7) * 300 * time.Microsecond)
		if err := rt.Close(ctx); err != nil {
			t.Error(err)
		}
		callers.Wait()
		if err := e.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}
