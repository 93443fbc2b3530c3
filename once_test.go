package kiln_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln"
	"github.com/kiln-cache/kiln/internal/actorstest"
)

// F1, F4, C13, P6: three tenants ask for three times as many keys as the artefact
// cache has entries, with deadlines far below a compile, and ask again until they have
// each. Each key is compiled once, and not again after a restart. The store's directory
// is all that is configured.
func TestEachKeyIsCompiledOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes thousands of files durably")
	}
	const keys, starts = 3 * 1024, 2
	dir, made := t.TempDir(), make([]atomic.Int32, keys)
	recipe := func(k int) kiln.Recipe[int] {
		value := kiln.Made[int]{Value: k, Bytes: 8, Blob: func(context.Context) ([]byte, error) { return strconv.AppendInt(nil, int64(k), 10), nil }}
		return kiln.Recipe[int]{
			Key: fmt.Sprint("key ", k),
			Make: func(ctx context.Context) (kiln.Made[int], error) {
				select {
				case <-time.After(150 * time.Millisecond):
					made[k].Add(1)
					return value, nil
				case <-ctx.Done():
					return kiln.Made[int]{}, ctx.Err()
				}
			},
			Load: func(_ context.Context, blob []byte) (kiln.Made[int], error) {
				if string(blob) != strconv.Itoa(k) {
					return kiln.Made[int]{}, fmt.Errorf("%q is the blob of %d", blob, k)
				}
				return value, nil
			},
		}
	}
	for start := range starts {
		actorstest.Bubble(t, func(t *testing.T) {
			r := must(kiln.Open(kiln.Config{StoreDir: dir}))
			var tenants sync.WaitGroup
			for tenant := range 3 {
				s := must(r.Session(kiln.SessionConfig{Name: fmt.Sprint("tenant ", tenant), Groups: kiln.Unlimited}))
				var next atomic.Int64
				for range 64 {
					tenants.Go(func() {
						for i := next.Add(1) - 1; i < keys; i = next.Add(1) - 1 {
							k := int(i)
							if tenant == 2 {
								k = keys - 1 - k // it meets the others halfway
							}
							if v, err := insist(s, k, recipe(k)); err != nil || v != k {
								t.Errorf("start %d, tenant %d, key %d: %d, %v", start, tenant, k, v, err)
								return
							}
						}
					})
				}
			}
			tenants.Wait()
			if err := r.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		for k := range made {
			if n := made[k].Load(); n != 1 {
				t.Fatalf("after start %d: key %d was compiled %d times", start, k, n)
			}
		}
	}
}

// insist asks for a key, 20 ms at a time, until it is there, or for 2 seconds.
func insist(s *kiln.Session, k int, recipe kiln.Recipe[int]) (v int, err error) {
	for range 100 {
		request, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		v, err = try(request, s, k, recipe)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	return v, err
}

func try(ctx context.Context, s *kiln.Session, k int, recipe kiln.Recipe[int]) (int, error) {
	g, err := s.Group(ctx, []int64{int64(k) + 1})
	if err != nil {
		return 0, err
	}
	defer g.Close()
	return kiln.Get(ctx, g, "kernel", recipe)
}
