package outside

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Clock
		begin := c.Now()
		var fired [3]time.Duration
		var once sync.Mutex
		at := func(i int) func() {
			return func() { once.Lock(); defer once.Unlock(); fired[i] = c.Now().Sub(begin) }
		}
		c.AfterFunc(time.Second, at(0))
		c.AfterFunc(time.Hour, at(1))
		stopped := c.AfterFunc(time.Minute, at(2))
		time.Sleep(2 * time.Second)
		if !stopped.Stop() || stopped.Stop() {
			t.Error("stop tells whether it was in time")
		}
		c.Advance(2 * time.Hour)
		synctest.Wait()
		if fired[0] != time.Second || fired[1] != 2*time.Hour+2*time.Second || fired[2] != 0 {
			t.Errorf("fired at %v", fired)
		}
		if got := c.Now().Sub(begin); got != 2*time.Hour+2*time.Second {
			t.Errorf("the clock shows %v", got)
		}
	})
}

func TestCreators(t *testing.T) { // section 4 of the language
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(context.Background())
		defer cancel()
		w := New(base, t.TempDir())
		var tally, other Tally
		text := "E"
		begun := 0
		run := func(ctx context.Context, c Creator, h Hooks) (v *Value, err error) {
			h.Begun = func() { begun++ }
			guard.Guard(func() (e error) { v, e = w.Create(ctx, c, "k", h, &tally, &other); return e }, func(e error) { err = e })
			return v, err
		}
		v, err := run(base, Default("k"), Hooks{})
		if err != nil || v.Text != "k" || v.Bytes != 1 || v.Cost != time.Second {
			t.Errorf("%+v, %v", v, err)
		}
		v.Release()
		v.Release()
		if w.Freed.Get("k") != 2 {
			t.Error("a second release does not show")
		}
		var failed *CreatorError
		if _, err := run(base, Creator{Fail: &text}, Hooks{}); !errors.As(err, &failed) || failed.Text != "E" {
			t.Error(err)
		}
		var panicked *fault.PanicError
		if _, err := run(base, Creator{Panic: &text}, Hooks{}); !errors.As(err, &panicked) || panicked.Value != "E" {
			t.Error(err)
		}
		start := time.Now()
		if _, err := run(base, Creator{After: time.Minute}, Hooks{}); err != nil || time.Since(start) != time.Minute {
			t.Error(err, time.Since(start))
		}
		w.Go("g")
		if _, err := run(base, Creator{Wait: "g"}, Hooks{}); err != nil {
			t.Error(err)
		}
		short, stop := context.WithTimeout(base, time.Second)
		defer stop()
		for _, c := range []Creator{{Wait: "never"}, {After: time.Hour}} {
			if _, err := run(short, c, Hooks{}); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		if tally.Aborted.Get("k") != 2 || tally.Creations.Sum("k", "none") != 7 || other.Creations.Get("k") != 7 || begun != 7 {
			t.Errorf("%d aborted, %d creations, %d begun", tally.Aborted.Get("k"), tally.Creations.Get("k"), begun)
		}
		var asked []string
		nested := Creator{Value: "v", Nest: []string{"a", "b", "c"}, Kernel: "x", Log: "log"}
		_, err = run(base, nested, Hooks{
			Nest: func(_ context.Context, key string) error {
				asked = append(asked, key)
				if key == "b" {
					return failed
				}
				return nil
			},
		})
		if !errors.Is(err, failed) || strings.Join(asked, " ") != "a b" {
			t.Errorf("asked for %v, %v", asked, err)
		}
		if text, _ := os.ReadFile(filepath.Join(w.Dir, "log")); string(text) != "k\n" {
			t.Errorf("log is %q", text)
		}
		if _, err := run(base, Creator{Log: "../log"}, Hooks{}); !errors.Is(err, fault.ErrInvalid) {
			t.Error(err)
		}
		cancel()
		if _, err := run(context.Background(), Creator{Wait: "never"}, Hooks{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a creator outlives its case: %v", err)
		}
	})
}

func TestFaults(t *testing.T) { // P5
	w := New(context.Background(), t.TempDir())
	if err := w.Faults.Set("write", "ENOSPC"); err != nil {
		t.Fatal(err)
	}
	if err := w.Faults.Op("write"); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	if err := w.Faults.Op("sync"); err != nil {
		t.Error(err)
	}
	w.Faults.Off()
	if err := w.Faults.Op("write"); err != nil {
		t.Error(err)
	}
	if n, err := w.Faults.Count("write"); n != 2 || err != nil {
		t.Error(n, err)
	}
	w.Faults.Reset()
	if n, _ := w.Faults.Count("write"); n != 0 {
		t.Error(n)
	}
	if !errors.Is(w.Faults.Set("seek", "EIO"), fault.ErrInvalid) || !errors.Is(w.Faults.Set("read", "EINVAL"), fault.ErrInvalid) {
		t.Error("an unknown operation or error is let through")
	}
	if !errors.Is(w.Driver.Set("merge", "refuse"), fault.ErrInvalid) || w.Driver.Set("merge", "fail") != nil {
		t.Error("driver settings")
	}
	if !w.Driver.Call("merge") || w.Driver.Call("create") {
		t.Error("the driver fails what it should not")
	}
	w.Driver.OK()
	if n, err := w.Driver.Calls("merge"); w.Driver.Call("merge") || n != 1 || err != nil {
		t.Error(n, err)
	}
}

// A directory with everything that can lie in it comes back exactly.
func TestPristine(t *testing.T) {
	dir := t.TempDir()
	w := New(context.Background(), dir)
	f := w.Files
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.Write("d/a", []byte("a")))
	must(f.Write("d/b", []byte("b")))
	must(f.Chmod("d/b", 0o640))
	must(f.Symlink("link", "d/a"))
	must(f.Fifo("pipe"))
	must(f.Mkdir("empty", 0o750))
	must(f.Write("mem:m", []byte("m")))
	before, err := readTree(dir)
	must(err)
	restore, err := f.Pristine()
	must(err)
	must(f.Write("d/a", []byte("changed")))
	must(f.Remove("d/b"))
	must(f.Remove("link"))
	must(f.Write("link", []byte("a file now")))
	must(f.Remove("pipe"))
	must(f.Remove("empty"))
	must(f.Write("empty/deep/new", nil))
	must(f.Write("new", nil))
	must(f.Write("mem:m", []byte("x")))
	must(restore())
	after, err := readTree(dir)
	must(err)
	if !before.equal(after) {
		t.Errorf("%v came back as %v", before, after)
	}
	if m, _ := f.Read("mem:m"); string(m) != "m" {
		t.Errorf("memory holds %q", m)
	}
}

func TestPlaces(t *testing.T) {
	w := New(context.Background(), t.TempDir())
	kept := t.TempDir()
	w.Files.Locate = func(component, key string) (string, bool, error) {
		if component == "broken" {
			return "", true, fault.ErrInvalid
		}
		return filepath.Join(kept, strings.ReplaceAll(key, "/", "_")), component == "s", nil
	}
	for name, want := range map[string]string{
		"a/b": w.Dir + "/a/b", ".": w.Dir, "s:k/key.bin": kept + "/k/key.bin", "s:k": kept + "/k", "s:../up/key.bin": kept + "/.._up/key.bin",
		"x:y": w.Dir + "/x:y", "s:a/": kept + "/a",
	} {
		if got, _, err := w.Files.Path(name); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	for _, name := range []string{"../a", "/etc/passwd", "a/../../b", "", "broken:k"} {
		if got, _, err := w.Files.Path(name); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	for name, err := range map[string]error{
		"mkdir in memory": w.Files.Mkdir("mem:a", 0o700), "fifo in memory": w.Files.Fifo("mem:a"), "nothing": w.Files.Remove("a"),
	} {
		if err == nil {
			t.Error(name)
		}
	}
	for _, at := range []int{3, -4} {
		if _, err := Flip([]byte("abc"), at, 0); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("byte %d of three: %v", at, err)
		}
	}
}
