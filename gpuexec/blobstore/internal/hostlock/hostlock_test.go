package hostlock_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/crashfs"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/hostlock"
	"github.com/kiln-cache/kiln/internal/vfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var background = context.Background()

const period = 9 * time.Second

func newFS(t *testing.T) vfs.FS {
	t.Helper()
	f := crashfs.New(nil)
	for _, name := range []string{"lock", "key", "tmp", "mark"} {
		if err := f.Mkdir(name); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// frozen is a file system whose writes have no effect: a process that stands still.
type frozen struct {
	vfs.FS
	still *atomic.Bool
}

type frozenFile struct {
	vfs.File
	still *atomic.Bool
}

func (f frozen) Create(name string) (vfs.File, error) {
	file, err := f.FS.Create(name)
	return frozenFile{file, f.still}, err
}

func (f frozenFile) WriteAt(p []byte, offset int64) (int, error) {
	if f.still.Load() {
		return len(p), nil
	}
	return f.File.WriteAt(p, offset)
}

func leases(f vfs.FS, lock bool) *hostlock.Leases {
	return &hostlock.Leases{FS: f, Folder: "key", Staging: "tmp", Period: period, Lock: lock}
}

func never() bool { return false }

func acquire(t *testing.T, l *hostlock.Leases) *hostlock.Lease {
	t.Helper()
	lease, err := l.Acquire(background, "k", never)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// P8: a holder that beats keeps its lease for as long as it likes; one that
// releases is followed at once, with a higher token.
func TestLeaseIsKept(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			l := leases(newFS(t), lock)
			first := acquire(t, l)
			begin := time.Now()
			got := make(chan *hostlock.Lease)
			go func() { got <- acquire(t, l) }()
			time.Sleep(20 * period)
			select {
			case <-got:
				t.Error("a living holder was replaced")
			default:
			}
			if !first.Held() {
				t.Error("not held")
			}
			if err := first.Release(); err != nil {
				t.Error(err)
			}
			second := <-got
			if waited := time.Since(begin) - 20*period; waited > 100*time.Millisecond || second.Token() <= first.Token() {
				t.Errorf("waited %v, token %d after %d", waited, second.Token(), first.Token())
			}
			_ = second.Release()
		})
	}
}

// P8: one that stands still is replaced within the lease time, and learns of it.
func TestLeaseOfOneThatStandsStill(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			var still atomic.Bool
			first := acquire(t, leases(frozen{f, &still}, lock))
			time.Sleep(2 * period)
			still.Store(true)
			begin := time.Now()
			second := acquire(t, leases(f, lock))
			if waited := time.Since(begin); waited < period/2 || waited > period*5/4 {
				t.Errorf("replaced after %v", waited)
			}
			if first.Held() || !second.Held() || second.Token() <= first.Token() {
				t.Error("both hold it, or the token did not grow")
			}
			still.Store(false)
			_ = first.Release() // late, and harmless
			if !second.Held() {
				t.Error("a late release took the lease of another")
			}
			_ = second.Release()
		})
	}
}

// P8: one whose work hangs, though it beats, is given up after a bound.
func TestLeaseOfOneThatHangs(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			bounded := leases(f, lock)
			bounded.Most = time.Minute
			first := acquire(t, bounded)
			begin := time.Now()
			second := acquire(t, leases(f, lock))
			if waited := time.Since(begin); waited < time.Minute || waited > time.Minute+period*5/4 {
				t.Errorf("given up after %v", waited)
			}
			if first.Held() || !second.Held() {
				t.Error("both hold it, or none does")
			}
			_, _ = first.Release(), second.Release()
		})
	}
}

// P8: who waits goes by the period of the holder.
func TestPeriodTravels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		slow, hasty := leases(f, true), leases(f, true)
		slow.Period, hasty.Period = 10*period, period/10
		first := acquire(t, slow)
		begin := time.Now()
		go func() {
			time.Sleep(20 * period)
			_ = first.Release()
		}()
		second := acquire(t, hasty)
		if waited := time.Since(begin); waited < 20*period {
			t.Errorf("a holder that beats by its own period was replaced after %v", waited)
		}
		_ = second.Release()
		time.Sleep(period)
	})
}

// P8: where there are locks, a holder that was killed is replaced at once: its lock
// went with it.
func TestLeaseOfOneThatWasKilled(t *testing.T) {
	for _, lock := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			if err := errors.Join(f.Mkdir("key/k"), vfs.WriteNew(f, "key/k/4", false, make([]byte, 9))); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			lease := acquire(t, leases(f, lock))
			if waited := time.Since(begin); (waited == 0) != lock || lease.Token() != 5 {
				t.Errorf("locks %t: token %d after %v", lock, lease.Token(), waited)
			}
			_ = lease.Release()
		})
	}
}

// P8: among many that wait, one at a time holds it.
func TestLeaseIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leases(newFS(t), true)
		var holders, most, held atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				lease := acquire(t, l)
				if n := holders.Add(1); n > most.Load() {
					most.Store(n)
				}
				held.Add(1)
				time.Sleep(time.Second)
				holders.Add(-1)
				_ = lease.Release()
			})
		}
		wg.Wait()
		if most.Load() != 1 || held.Load() != 20 {
			t.Errorf("%d at once, %d in all", most.Load(), held.Load())
		}
	})
}

// P5: without the folder for staging a lease is not to be had, which is said soon.
func TestAcquireWithoutStaging(t *testing.T) {
	f := newFS(t)
	if err := f.Remove("tmp"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(background)
	defer cancel()
	rounds := 0
	l := leases(vfs.Watch(f, func(string) error {
		if rounds++; rounds == 1000 {
			cancel()
		}
		return nil
	}), true)
	if _, err := l.Acquire(ctx, "k", never); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v after %d operations", err, rounds)
	}
}

// settled ends the wait of those who need it no more; a context ends any.
func TestAcquireEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := leases(newFS(t), true)
		first := acquire(t, l)
		ctx, cancel := context.WithTimeout(background, time.Minute)
		defer cancel()
		if _, err := l.Acquire(ctx, "k", never); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		done := make(chan string)
		go func() {
			lease, err := l.Acquire(background, "k", func() bool { return true })
			done <- fmt.Sprint(lease == nil, err)
		}()
		time.Sleep(time.Second)
		_ = first.Release()
		if got := <-done; got != "true <nil>" {
			t.Error(got)
		}
		l.Sweep("k", time.Now().Add(time.Hour))
		if list, err := l.FS.ReadDir("key"); err != nil || len(list) != 0 {
			t.Error("a lease of nobody stays:", list, err)
		}
	})
}

// P9: the lease of a dead holder goes at once, that of a living one never, and what was
// released when it is old.
func TestSweepOfLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		l := leases(f, true)
		there := func(what string, before time.Time, want bool) {
			t.Helper()
			l.Sweep("k", before)
			if list, err := f.ReadDir("key"); err != nil || (len(list) == 1) != want {
				t.Errorf("%s: there: %t, %v", what, !want, err)
			}
		}
		past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		held := acquire(t, l)
		there("held", future, true)
		if err := held.Release(); err != nil {
			t.Fatal(err)
		}
		if list, err := f.ReadDir("key"); err != nil || len(list) != 0 {
			t.Error("a lease that has ended leaves something:", list, err)
		}
		older := func() error { // of a version that left it, or of a process that was killed while it ended the lease
			return errors.Join(f.Mkdir("key/k"), vfs.WriteNew(f, "key/k/1", false, append(make([]byte, 8), 1)))
		}
		if err := older(); err != nil {
			t.Fatal(err)
		}
		there("released", past, true)
		there("released and old", future, false)
		if err := errors.Join(f.Mkdir("key/k"), vfs.WriteNew(f, "key/k/1", false, make([]byte, 9))); err != nil { // nobody has its lock
			t.Fatal(err)
		}
		there("dead", past, false)
		if err := f.Mkdir("key/k"); err != nil {
			t.Fatal(err)
		}
		there("about to be taken", past, true)
	})
}

// P9: who holds the lock of its file lives, who left has none, and of a dead one there
// is a file without a lock.
func TestOwners(t *testing.T) {
	f := newFS(t)
	if err := f.Mkdir("owner"); err != nil {
		t.Fatal(err)
	}
	o := hostlock.Owners{FS: f, Folder: "owner"}
	const process = "0123456789abcdef01234567"
	want := func(what string, want map[string]bool) {
		t.Helper()
		if living, err := o.Living(); err != nil || !maps.Equal(living, want) {
			t.Errorf("%s: %v %v", what, living, err)
		}
	}
	one, err := o.Enter(process + "1")
	if err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteNew(f, "owner/"+process+"2", false, nil); err != nil {
		t.Fatal(err)
	}
	want("one lives", map[string]bool{process: true, process + "1": true, process + "2": false})
	if !one.There() {
		t.Error("it is not there")
	}
	if err := f.Remove("owner/" + process + "1"); err != nil || one.There() {
		t.Error("it is there", err)
	}
	if err := one.Leave(); err != nil {
		t.Error(err)
	}
	want("none lives", map[string]bool{process: false, process + "2": false})
	if err := o.Forget(process + "2"); err != nil {
		t.Error(err)
	}
	want("none", map[string]bool{})
}

// P7: the directory lock is one at a time, and passes over a holder that stands still.
func TestDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		a, b, c := hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(f, "lock", period)
		if err := a.Lock(background); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(background, period/2)
		defer cancel()
		if err := b.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("locked twice:", err)
		}
		beating := make(chan struct{})
		go func() {
			defer close(beating)
			for range 30 { // long work that shows itself
				time.Sleep(period / 3)
				a.Beat()
			}
		}()
		ctx, cancel = context.WithTimeout(background, 5*period)
		defer cancel()
		if err := b.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("a holder at work was passed over:", err)
		}
		<-beating
		begin := time.Now()
		if err := b.Lock(background); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited > period*5/4 {
			t.Errorf("passed over after %v", waited)
		}
		if a.Held() || !b.Held() {
			t.Error("who holds it?")
		}
		b.Unlock()
		if err := c.Lock(background); err != nil || !c.Held() {
			t.Error(err)
		}
		a.Unlock() // late, and harmless
		if !c.Held() {
			t.Error("a late unlock took the lock of another")
		}
		c.Unlock()
	})
}

// passOver makes one that stands still and another that has the lock after it.
func passOver(t *testing.T, f vfs.FS) (still, next *hostlock.Directory) {
	t.Helper()
	still, next = hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(f, "lock", period)
	for _, d := range []*hostlock.Directory{still, next} {
		if err := d.Lock(background); err != nil {
			t.Fatal(err)
		}
	}
	return still, next
}

// P7: who waits for the directory lock has it at once when it is given back, and who
// stopped waiting keeps it from nobody.
func TestDirectoryWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		a, b, c := hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(f, "lock", period)
		if err := a.Lock(background); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		if err := b.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("locked twice:", err)
		}
		locked := make(chan error)
		go func() { locked <- c.Lock(background) }()
		time.Sleep(123456 * time.Nanosecond)
		begin := time.Now()
		a.Unlock()
		if err := <-locked; err != nil || !c.Held() || time.Since(begin) != 0 {
			t.Errorf("%v, held: %t, woken after %v", err, c.Held(), time.Since(begin))
		}
		time.Sleep(time.Minute)
		c.Unlock()
		if a.Longest() != 123456*time.Nanosecond+time.Millisecond || b.Longest() != 0 || c.Longest() != time.Minute {
			t.Error("held for", a.Longest(), b.Longest(), c.Longest())
		}
	})
}

// lockers counts those that wait in the system's queue.
type lockers struct {
	vfs.FS
	n *atomic.Int32
}

type lockersFile struct {
	vfs.File
	n *atomic.Int32
}

func (l lockers) Update(name string) (vfs.File, error) {
	f, err := l.FS.Update(name)
	return lockersFile{f, l.n}, err
}

func (f lockersFile) Lock() error {
	f.n.Add(1)
	defer f.n.Add(-1)
	return f.File.Lock()
}

// P8: those that stop waiting behind a holder that stands still, and those that passed it
// over, leave one thread to the system, not one each.
func TestDirectoryLeavesOneWaiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFS(t)
		var waiting atomic.Int32
		still, d := hostlock.NewDirectory(f, "lock", period), hostlock.NewDirectory(lockers{f, &waiting}, "lock", period)
		if err := still.Lock(background); err != nil {
			t.Fatal(err)
		}
		for i := range 1000 {
			ctx, cancel := context.WithTimeout(background, time.Millisecond)
			if err := d.Lock(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(i, err)
			}
			cancel()
		}
		for range 3 {
			if err := d.Lock(background); err != nil {
				t.Fatal(err)
			}
			if n := waiting.Load(); n != 1 {
				t.Errorf("%d wait", n)
			}
			d.Unlock()
		}
		still.Unlock()
		synctest.Wait()
		if n := waiting.Load(); n != 0 {
			t.Errorf("%d wait for nothing", n)
		}
	})
}

// P5, P7: foreign things whose names are numbers are passed over; where no number
// can follow, the lock is an error at once.
func TestForeignGeneration(t *testing.T) {
	for name, taken := range map[string]bool{"7": true, "9223372036854775807": true, "9223372036854775806": false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFS(t)
			if err := f.Mkdir("lock/" + name); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(background)
			defer cancel()
			rounds := 0
			d := hostlock.NewDirectory(vfs.Watch(f, func(string) error {
				if rounds++; rounds == 1000 {
					cancel()
				}
				return ctx.Err()
			}), "lock", period)
			if err := d.Lock(ctx); (err == nil) != taken || rounds >= 1000 {
				t.Errorf("%s: %v after %d operations", name, err, rounds)
			}
			d.Unlock()
		})
	}
}
