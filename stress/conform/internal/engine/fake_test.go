package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/guard"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

const processFlag = "@process"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == processFlag {
		os.Exit(fakeEngine().Serve(os.Stdin, os.Stdout))
	}
	goleak.VerifyTestMain(m)
}

func fakeEngine() *Engine {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return &Engine{
		Kinds: map[string]Kind{
			"cache": {Options: "cap", Open: openFake},
			"files": {Options: "dir mark", Open: openFakeFiles},
		},
		Process: []string{exe, processFlag},
	}
}

// fake is the smallest cache with flights that exercises the runner.
type fake struct {
	mu      sync.Mutex
	closed  bool
	held    map[string]*outside.Value
	flights map[string]*fakeFlight
	hits    int
	work    sync.WaitGroup
}

type fakeFlight struct {
	done  chan struct{}
	value *outside.Value
	err   error
}

func openFake(c *Call) (Component, error) {
	n := c.Int("cap", 4)
	if n < 0 {
		return nil, c.refuse("cap=%d", n)
	}
	return &fake{held: map[string]*outside.Value{}, flights: map[string]*fakeFlight{}}, nil
}

func (f *fake) Close(context.Context) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.work.Wait()
	return nil
}

type fakeLease struct{ v *outside.Value }

func (l fakeLease) Value() (string, bool) { return l.v.Text, true }
func (l fakeLease) End()                  { l.v.Release() }

func (f *fake) get(c *Call, key string) (*outside.Value, string, error) {
	creator := c.Creator(key)
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil, "", fault.ErrClosed
	}
	if v, ok := f.held[key]; ok {
		f.hits++
		f.mu.Unlock()
		return v, "hit", nil
	}
	by := "joined"
	fl, ok := f.flights[key]
	if !ok {
		by = "miss"
		fl = &fakeFlight{done: make(chan struct{})}
		f.flights[key] = fl
		f.work.Add(1)
		go func() {
			defer f.work.Done()
			guard.Guard(func() error {
				var err error
				fl.value, err = c.World.Create(c.Ctx, creator, key, outside.Hooks{Begun: c.Begun}, c.Tally())
				return err
			}, func(err error) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if fl.err = err; err == nil {
					f.held[key] = fl.value
				}
				delete(f.flights, key)
				close(fl.done)
			})
		}()
	}
	f.mu.Unlock()
	select {
	case <-fl.done:
		return fl.value, by, fl.err
	case <-c.Ctx.Done():
		return nil, "", c.Ctx.Err()
	}
}

func (f *fake) Verbs() Verbs {
	verbs := Verbs{}
	verbs["get"] = Verb{Least: 1, Most: 1, Options: CreatorOptions + "lease", Flags: CreatorFlags, Run: func(c *Call) (script.Result, error) {
		v, by, err := f.get(c, c.Arg(0))
		if err != nil {
			return script.Result{}, err
		}
		if _, ok := c.Option("lease"); ok {
			c.Lease(fakeLease{v})
		}
		return script.Say(v.Text).With("by", by), nil
	}}
	verbs["len"] = Verb{Run: func(*Call) (script.Result, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return Number(len(f.held) + len(f.flights)), nil
	}}
	verbs["count"] = Verb{Least: 1, Most: 1, Run: func(*Call) (script.Result, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hits++ // so that reading again shows
		return Number(f.hits), nil
	}}
	verbs["say"] = Verb{Least: 1, Most: -1, Options: "*", Run: func(c *Call) (script.Result, error) {
		var r script.Result
		for i := range c.Len() {
			r.Words = append(r.Words, c.Arg(i))
		}
		for _, o := range c.Options() {
			r = r.With(o.Name, o.Value)
		}
		return r, nil
	}}
	verbs["blow"] = Verb{Run: func(*Call) (script.Result, error) { panic("blown") }}
	verbs["hang"] = Verb{Run: func(c *Call) (script.Result, error) { <-c.Ctx.Done(); return OK(), nil }}
	verbs["die"] = Verb{Run: func(*Call) (script.Result, error) { os.Exit(7); return OK(), nil }}
	verbs["leak"] = Verb{Run: func(c *Call) (script.Result, error) {
		go func() { <-c.World.Gate("leaked") }()
		return OK(), nil
	}}
	verbs["allocate"] = Verb{Run: func(*Call) (script.Result, error) {
		sink = make([]byte, 16<<20)
		return OK(), nil
	}}
	return verbs
}

var sink []byte

// fakeFiles keeps keys in files: get tells whether one is whole.
type fakeFiles struct {
	dir  string
	mark string // file that Close leaves behind
	open bool
	seen int
}

func openFakeFiles(c *Call) (Component, error) {
	f := &fakeFiles{dir: filepath.Join(c.World.Dir, c.Or("dir", "d")), open: true}
	if mark, ok := c.Option("mark"); ok {
		f.mark = filepath.Join(c.World.Dir, mark)
	}
	return f, os.MkdirAll(f.dir, 0o700)
}

func (f *fakeFiles) Close(context.Context) error {
	f.open = false
	if f.mark == "" {
		return nil
	}
	return os.WriteFile(f.mark, nil, 0o600)
}

func (f *fakeFiles) Reopen(context.Context) error      { f.open = true; return nil }
func (f *fakeFiles) Folder(key string) (string, error) { return filepath.Join(f.dir, key), nil }

func (f *fakeFiles) Verbs() Verbs {
	return Verbs{
		"put": {Least: 2, Most: 2, Run: func(c *Call) (script.Result, error) {
			dir := filepath.Join(f.dir, c.Arg(0))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return script.Result{}, err
			}
			return Done(os.WriteFile(filepath.Join(dir, "kernel.bin"), []byte(c.Arg(1)), 0o600))
		}},
		"get": {Least: 2, Most: 2, Run: func(c *Call) (script.Result, error) {
			f.seen++
			text, err := os.ReadFile(filepath.Join(f.dir, c.Arg(0), "kernel.bin"))
			if !f.open {
				return script.Result{}, fault.ErrClosed
			}
			if err != nil || string(text) != c.Arg(1) {
				_ = os.WriteFile(filepath.Join(f.dir, "junk"), nil, 0o600) // to be cleaned by the next restore
				return script.Say("miss").With("reason", "checksum"), nil
			}
			return script.Say(string(text)), nil
		}},
		"seen": {Run: func(*Call) (script.Result, error) { return Number(f.seen), nil }},
	}
}

// outcome runs the statements as one case.
func outcome(t *testing.T, statements string) Outcome {
	t.Helper()
	text := "case X rules=K1\n" + strings.TrimSpace(statements) + "\n"
	f, err := script.Parse("x.kiln", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return fakeEngine().Run("x.kiln", &f.Cases[0])
}

func passes(t *testing.T, statements string) {
	t.Helper()
	if o := outcome(t, statements); o.Result != Pass {
		t.Errorf("%s:%d: got %s, want %s\n%s", o.File, o.Line, o.Got, o.Want, strings.Join(o.Events, "\n"))
	}
}

func fails(t *testing.T, statements string, line int, got string) {
	t.Helper()
	o := outcome(t, statements)
	if o.Result != Fail || o.Line != line+1 || !strings.Contains(o.Got, got) {
		t.Errorf("%s\n: %s in line %d with %q, want a failure in line %d with %q", statements, o.Result, o.Line-1, o.Got, line, got)
	}
}

func ExampleEngine_Run() {
	f, _ := script.Parse("x.kiln", []byte("case X rules=F1\nopen c cache\nc get k -> k by=hit"))
	o := fakeEngine().Run("x.kiln", &f.Cases[0])
	fmt.Println(o.Result, o.Line, o.Got, "/", o.Want)
	// Output: fail 3 k by=miss / k by=hit
}
