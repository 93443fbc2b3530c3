package sessioncache_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/sessioncache"
	"github.com/kiln-cache/kiln/shapegroups"
)

// lines collects what is logged. Safe for concurrent use.
type lines struct {
	mu struct {
		sync.Mutex
		bytes.Buffer
	}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.String()
}

// TestHandlesClosedAroundSessionEnd: the last handle of a group may be closed
// while the session ends. Whoever comes last frees what the group holds, names
// that were overwritten included, and each value is freed once. // C5, G12
func TestHandlesClosedAroundSessionEnd(t *testing.T) {
	const rounds, retired = 4, 20_000
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	slow := make([]shapegroups.Shape, 20_000)
	for i := range slow {
		slow[i] = shape(t, i)
	}
	var log lines
	for round := range rounds {
		s, err := sessioncache.Open(sessioncache.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		group := func(n int) *sessioncache.Group {
			g, err := s.Group(bg, shape(t, n))
			if err != nil {
				t.Fatal(err)
			}
			return g
		}
		freed := make([]atomic.Int32, retired)
		next := 0
		overwrite := func(to int) {
			for ; next < to; next++ {
				at := &freed[next]
				if err := s.Set(bg, shape(t, 1), "n", sessioncache.Value{Free: func() { at.Add(1) }}, sessioncache.Options{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		first := group(1)
		overwrite(2) // begins a phase
		earlier := group(1)
		overwrite(retired - 2)
		first.Close() // begins another
		overwrite(retired - 1)
		later := group(1)
		overwrite(retired)

		// The session is empty and ends with its creator.
		began, end := make(chan struct{}), make(chan struct{})
		maker := group(2)
		var all sync.WaitGroup
		all.Go(func() {
			defer maker.Close()
			_, _, err := maker.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
				close(began)
				<-end
				return sessioncache.Value{}, nil
			})
			wantError(t, "made too late", err, fault.ErrClosed)
		})
		<-began
		all.Go(func() {
			if err := s.Close(bg); err != nil {
				t.Error(err)
			}
		})
		eventually(t, func() bool { return !earlier.Resident() }, func() any { return "resident" }, "group", "gone")
		_ = s.Announce(slow...) // the actor is busy: the end of the creator waits, and a handle's behind it
		close(end)
		time.Sleep(time.Millisecond)
		earlier.Close()
		for !sessioncache.Ended(s) {
			runtime.Gosched()
		}
		later.Close() // while the actor looks at the other
		all.Wait()
		eventually(t, func() bool {
			for i := range freed {
				if freed[i].Load() == 0 {
					return false
				}
			}
			return true
		}, func() any { return "not all" }, "freed", "all")
		for i := range freed {
			if n := freed[i].Load(); n != 1 {
				t.Fatalf("round %d: value %d was freed %d times, want once", round, i, n)
			}
		}
		if text := log.text(); text != "" {
			t.Fatalf("round %d: logged: %s", round, text)
		}
	}
}

// mute is a context that has ended and does not say why.
type mute struct{ context.Context }

func (mute) Err() error { return nil }

// F8: Close does not say that it is done where it is not, whatever its context says.
func TestCloseWithASilentContext(t *testing.T) {
	p := open(t, sessioncache.Config{})
	g := p.hold(1)
	gate, began := gates()
	made := make(chan error, 1)
	go func() {
		_, _, err := g.Get(bg, "n", sessioncache.Options{}, func(context.Context) (sessioncache.Value, error) {
			close(began)
			<-gate
			return p.value("v"), nil
		})
		made <- err
	}()
	<-began
	ended, end := context.WithCancel(bg)
	end()
	if err := p.Close(mute{ended}); !errors.Is(err, context.Canceled) {
		t.Errorf("Close beside a creator: %v", err)
	}
	close(gate)
	<-made
	g.Close()
	if err := p.Close(bg); err != nil {
		t.Error(err)
	}
}
