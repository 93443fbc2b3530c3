package kiln_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
)

func x12Runtime(t testing.TB, cfg kiln.Config) *kiln.Runtime {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r, err := kiln.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func x12Group(t testing.TB, r *kiln.Runtime, name string, dim int64) (*kiln.Session, *kiln.Group) {
	t.Helper()
	s, err := r.Session(kiln.SessionConfig{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Group(context.Background(), []int64{dim})
	if err != nil {
		t.Fatal(err)
	}
	return s, g
}

func x12Recipe(key string, make func(ctx context.Context) (int, error)) kiln.Recipe[int] {
	blob := func(v int) func(context.Context) ([]byte, error) {
		return func(context.Context) ([]byte, error) { return []byte(strconv.Itoa(v)), nil }
	}
	return kiln.Recipe[int]{Key: key,
		Make: func(ctx context.Context) (kiln.Made[int], error) {
			v, err := make(ctx)
			return kiln.Made[int]{Value: v, Blob: blob(v)}, err
		},
		Load: func(ctx context.Context, b []byte) (kiln.Made[int], error) {
			v, err := strconv.Atoi(string(b))
			return kiln.Made[int]{Value: v, Blob: blob(v)}, err
		}}
}

// F5: its own key, through another runtime of the process over the same store.
func TestX12CircleThroughTheStore(t *testing.T) {
	dir := t.TempDir()
	a := x12Runtime(t, kiln.Config{StoreDir: dir})
	b := x12Runtime(t, kiln.Config{StoreDir: dir})
	_, ga := x12Group(t, a, "a", 1)
	_, gb := x12Group(t, b, "b", 1)
	ctx, stop := context.WithTimeout(context.Background(), 25*time.Second)
	defer stop()
	start := time.Now()
	var inner error
	var innerTook time.Duration
	_, err := kiln.Get(ctx, ga, "n", x12Recipe("x", func(ctx context.Context) (int, error) {
		begin := time.Now()
		ctx, stop := context.WithTimeout(ctx, 20*time.Second)
		defer stop()
		v, err := kiln.Get(ctx, gb, "n", x12Recipe("x", func(context.Context) (int, error) { return 7, nil }))
		inner, innerTook = err, time.Since(begin)
		return v, err
	}))
	t.Log("outer:", err, time.Since(start), "inner:", inner, innerTook)
	if innerTook > 15*time.Second {
		t.Errorf("the inner ask took %v and answered %v: want ErrCycle within a second, or the value", innerTook, inner)
	}
	ga.Close()
	gb.Close()
	a.Close(context.Background())
	b.Close(context.Background())
}

// Runtime.Close waits for what Warm called: nothing is asked after it has returned.
func TestX12WarmAsksAfterClose(t *testing.T) {
	var manifest bytes.Buffer
	{
		r := x12Runtime(t, kiln.Config{Record: true})
		s, err := r.Session(kiln.SessionConfig{Name: "s", Groups: kiln.Unlimited})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			g, err := s.Group(context.Background(), []int64{int64(i + 1)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := kiln.Get(context.Background(), g, "n", x12Recipe(fmt.Sprint("k", i), func(context.Context) (int, error) { return i, nil })); err != nil {
				t.Fatal(err)
			}
			g.Close()
		}
		if err := r.Record(&manifest); err != nil {
			t.Fatal(err)
		}
		r.Close(context.Background())
	}
	late := 0
	for round := range 300 {
		r := x12Runtime(t, kiln.Config{Workers: 4})
		var closed, bad atomic.Bool
		done := make(chan error, 1)
		go func() {
			_, err := r.Warm(context.Background(), bytes.NewReader(manifest.Bytes()), func(ctx context.Context, g *kiln.Group, e kiln.Entry) error {
				if closed.Load() {
					bad.Store(true)
				}
				return nil
			})
			done <- err
		}()
		time.Sleep(time.Duration(round%30) * 100 * time.Microsecond)
		if err := r.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		closed.Store(true)
		if err := <-done; err != nil && !errors.Is(err, kiln.ErrClosed) {
			t.Error(err)
		}
		if bad.Load() {
			late++
		}
	}
	if late > 0 {
		t.Errorf("in %d of 300 rounds a function of Warm was called after Runtime.Close had returned", late)
	}
}
