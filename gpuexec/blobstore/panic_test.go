//go:build unix

package blobstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
)

// P5: a clock or a hash that panics under the lock of the directory leaves no lock behind,
// and accounts that the next change puts right.
func TestPanicInAChange(t *testing.T) {
	for _, what := range []string{"now", "hash"} {
		r := newRig(t)
		w := lockWatch{nil, &atomic.Bool{}, &atomic.Int64{}, &atomic.Int64{}, &atomic.Int64{}}
		var armed atomic.Bool
		user := func(name string) {
			if name == what && w.held.Load() && armed.CompareAndSwap(true, false) {
				panic(what)
			}
		}
		st, err := blobstore.Open(background, r.config("d", mib, func(c *blobstore.Config) {
			blobstore.SetFS(c, func(root string) vfs.FS { w.FS = vfs.Dir(root); return w })
			c.Now = func() time.Time { user("now"); return r.now() }
			c.Hash = func(string) uint64 { user("hash"); return 7 }
		}))
		r.must(err)
		s := &shop{Store: st, r: r} // not closed at the end, which would wait for a lock that was left
		armed.Store(true)
		func() {
			defer func() { r.want("panic", recover(), what) }()
			s.put("k", "v")
		}()
		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		r.must(s.Put(ctx, backend, "j", []byte("v"), time.Second))
		r.want("accounts", s.audit(), "ok")
		r.must(s.Store.Close(ctx))
		cancel()
	}
}

// P7: a listener that panics leaves the bytes within the capacity, also where so much is to
// be evicted that the lock is given back meanwhile.
func TestListenerPanicsBetweenTurnsOfEviction(t *testing.T) {
	r := newRig(t)
	var armed atomic.Bool
	s := r.open("d", 300*small, func(c *blobstore.Config) {
		c.Listen = func(e blobstore.Event) {
			if e.Kind == "evicted" && armed.CompareAndSwap(true, false) {
				panic("listener")
			}
		}
	})
	s.fill(1, 300, 10)
	armed.Store(true)
	func() {
		defer func() { r.want("panic", recover(), "listener") }()
		s.put("large", "v", putOptions{bytes: 250 * small})
	}()
	if n := s.usage().DiskBytes; n > 300*small {
		t.Errorf("%d bytes of %d", n, 300*small)
	}
}

// F3: user code that panics, or ends its goroutine, on a goroutine of the store: the
// process lives, the caller is told, timers go on, and Close returns.
func TestUserCodeOnGoroutinesOfTheStore(t *testing.T) {
	for name, fault := range map[string]func(){"panic": func() { panic("clock") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			from := r.open("from", mib)
			from.fill(1, 2, 10)
			var archive bytes.Buffer
			_, err := from.Export(background, &archive)
			r.must(err)

			var armed atomic.Bool
			var hourly func()
			hours := 0
			st, err := blobstore.Open(background, r.config("to", mib, func(c *blobstore.Config) {
				c.Now = func() time.Time {
					if armed.Load() {
						fault()
					}
					return r.now()
				}
				c.After = func(d time.Duration, f func()) func() bool {
					if d == time.Hour {
						hourly = f
						hours++
					}
					return func() bool { return true }
				}
			}))
			r.must(err)
			armed.Store(true)
			done := make(chan struct{})
			go func() {
				defer close(done)
				hourly()
			}()
			<-done
			r.want("armed again", hours, 2)
			_, err = st.Import(background, &archive)
			r.want("import failed", err != nil, true)
			ctx, cancel := context.WithTimeout(background, 10*time.Second)
			defer cancel()
			r.want("close", errors.Is(st.Close(ctx), context.DeadlineExceeded), false)
		})
	}
}

// F3: a context that ends while a caller waits with it for a builder, and panics when it
// is asked why, ends the wait and not the process.
func TestWaitWithAContextThatPanics(t *testing.T) {
	r := newRig(t)
	s := r.open("d", mib)
	_, held, _, err := s.Store.Obtain(background, backend, "k")
	r.must(err)
	asked := mute{background, make(chan struct{})}
	time.AfterFunc(10*time.Millisecond, func() { close(asked.done) })
	_, _, _, err = s.Store.Obtain(asked, backend, "k")
	r.want("waited", errors.Is(err, context.Canceled), true)
	held.Release()
}

// mute does not say why it has ended.
type mute struct {
	context.Context
	done chan struct{}
}

func (m mute) Done() <-chan struct{} { return m.done }
func (m mute) Err() error {
	select {
	case <-m.done:
		panic("asked")
	default:
		return nil
	}
}

// fierce is a handler of logs that does not return.
type fierce struct {
	slog.Handler
	fault func()
}

func (fierce) Enabled(context.Context, slog.Level) bool { return true }
func (f fierce) Handle(context.Context, slog.Record) error {
	f.fault()
	return nil
}

// noFolders is a file system that cannot sync folders.
type noFolders struct{ vfs.FS }

func (noFolders) SyncDir(string) error { return syscall.EINVAL }

// F3, P5: a logger that panics, on a goroutine of the store or under the lock of the
// directory, loses its record and nothing else.
func TestLoggerThatPanics(t *testing.T) {
	for name, fault := range map[string]func(){"panic": func() { panic("logger") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var full atomic.Bool
			full.Store(true)
			s := r.open("d", mib, sync_(blobstore.Full), on(func(f vfs.FS) vfs.FS { return noOwner{noFolders{f}, &full} }),
				func(c *blobstore.Config) { c.Logger = slog.New(fierce{fault: fault}) })
			r.want("put", words(s.put("k", "v"), s.get("k")), "ok v")
		})
	}
}
