//go:build unix

package blobstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
)

// P8: everything at once from many goroutines on two stores of one directory, in
// both profiles: no wrong payload, no bad entry, never beyond the capacity.
func TestHammer(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			r := newRig(t)
			const capacity = 20000
			profile := func(c *blobstore.Config) { c.Shared, c.Policy = shared, blobstore.LRU }
			stores := []*shop{r.open("d", capacity, profile), r.open("d", capacity, profile)}
			var wg sync.WaitGroup
			start := make(chan struct{})
			for g := range 8 {
				s := stores[g%2]
				wg.Go(func() {
					<-start
					for i := range 40 {
						key := fmt.Sprintf("k%d", (g*7+i)%23)
						switch i % 8 {
						case 0:
							if err := s.Prune(background, capacity/2); err != nil {
								t.Error(err)
							}
						case 1:
							if u := s.usage(); !shared && u.Bytes > capacity {
								t.Errorf("%d bytes in use", u.Bytes)
							}
						case 2:
							if _, err := s.Verify(background, true); err != nil {
								t.Error(err)
							}
						case 3, 4:
							if got := s.get(key); got != "v"+key && got != "miss reason=absent" {
								t.Errorf("%s: %s", key, got)
							}
						default:
							if got := s.put(key, "v"+key, putOptions{bytes: 900 + i, cost: 1}); got != "ok" {
								t.Errorf("%s: %s", key, got)
							}
						}
					}
				})
			}
			close(start)
			wg.Wait()
			r.want("verify", stores[0].verify(), 0)
			r.want("audit", stores[1].audit(), "ok")
			r.want("set aside", stores[0].usage().Quarantined, 0)
		})
	}
}

// F8: Close among calls: each ends with its answer or ErrClosed.
func TestCloseAmongCalls(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	_, held, _, err := s.Obtain(background, backend, "held")
	r.must(err)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				got := s.put(fmt.Sprintf("k%d-%d", g, i), "v")
				if got == "error closed" {
					return
				}
				if got != "ok" {
					t.Error(got)
				}
			}
		})
	}
	wg.Go(func() { // waits for a builder that never ends
		_, _, _, err := s.Obtain(background, backend, "held")
		if got := said(err); got != "error closed" {
			t.Errorf("waiter: %s", got)
		}
	})
	r.eventually("some are stored", func() bool { return s.Stats().Stores > 8 })
	r.must(s.Store.Close(background))
	wg.Wait()
	held.Release()
	s.reopen()
	r.want("audit", s.audit(), "ok")
}

// F8: what is asked after Close is answered at once, also while Close waits for a
// call that is stuck.
func TestCallsBehindAStuckOne(t *testing.T) {
	r := newRig(t)
	stuck := newStall("lstat test/7")
	s := r.open("d", mib, hash(7), stuck.config)
	done := make(chan string, 2)
	r.want("put", s.put("k", "v"), "ok")
	go func() { done <- s.put("j", "v") }()
	<-stuck.reached
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	r.want("close", s.Store.Close(ctx), context.DeadlineExceeded)
	var answered atomic.Int32
	go func() {
		for range 1000 {
			if got := s.get("k"); got != "error closed" {
				t.Error(got)
			}
			answered.Add(1)
		}
		done <- ""
	}()
	defer func() { <-done; <-done }()
	defer close(stuck.resume)
	r.eventually("all are answered", func() bool { return answered.Load() == 1000 })
}
