package rooms

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/internal/fakedevice"
	"github.com/kiln-cache/kiln/stress/conform/internal/engine"
	"github.com/kiln-cache/kiln/stress/conform/internal/outside"
	"github.com/kiln-cache/kiln/stress/conform/internal/script"
)

// mostBlocks is what the fake device takes in one launch.
const mostBlocks = 65535

// executor binds an executor over a fake device.
type executor struct {
	exec  *gpuexec.Executor
	fake  *fakedevice.Backend
	named outside.Register[string, *named]
}

// named is a kernel by its name in a script, compiled at the first launch.
type named struct {
	source gpuexec.Source
	mu     struct {
		sync.Mutex // held over the compile: the fake device is quick
		kernel     *gpuexec.Kernel
	}
}

// kernel gives the compiled kernel, which goes with its executor.
func (n *named) kernel(ctx context.Context, e *gpuexec.Executor) (*gpuexec.Kernel, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	if n.mu.kernel == nil {
		n.mu.kernel, err = e.Compile(ctx, n.source)
	}
	return n.mu.kernel, err
}

// pace is what a script says of one launch; it travels in the launch's context.
type pace struct {
	world   *outside.World
	creator outside.Creator
	begun   func()
}

type paceKey struct{}

func openExecutor(c *engine.Call) (engine.Component, error) {
	e := &executor{fake: &fakedevice.Backend{
		Limits: gpuexec.Limits{MaxGrid: gpuexec.Size{mostBlocks}, Alignment: 1},
		OnLaunch: func(ctx context.Context, _ string, _ []gpuexec.DeviceArg, _ int) error {
			p := ctx.Value(paceKey{}).(pace)
			p.begun()
			return p.world.Pass(ctx, p.creator)
		},
	}}
	cfg := gpuexec.Config{Backend: e.fake, Queue: c.Int("queue", 0), Workers: c.Int("workers", 0)}
	cfg.Linger = cmp.Or(c.Duration("linger", 0), -1)
	e.exec = engine.Must(gpuexec.Open(c.Ctx, cfg))
	return e, nil
}

func (e *executor) Close(ctx context.Context) error { return e.exec.Close(ctx) }

func (e *executor) Verbs() engine.Verbs {
	return engine.Verbs{
		"kernel": {Least: 1, Most: 1, Options: "params", Run: e.define},
		"launch": {Least: 1, Most: 1, Options: "args grid wait after", Run: e.launch},
		"lose":   {Run: e.lose},
		"ready":  engine.Does(0, func(c *engine.Call) error { return e.exec.Ready(c.Ctx) }),
		"count":  {Least: 1, Most: 1, Run: e.count},
	}
}

// define names a kernel; it is compiled when it is first launched.
func (e *executor) define(c *engine.Call) (script.Result, error) {
	if c.Arg(0) == "" {
		return script.Result{}, fault.Invalidf("conform: kernel", "a kernel needs a name")
	}
	text := c.Or("params", "")
	src := gpuexec.Source{Key: c.Arg(0) + "(" + text + ")", Params: engine.Must(listOf(text, param))}
	e.named.Set(c.Arg(0), &named{source: src})
	return engine.OK(), nil
}

// param reads buffer:BYTES or u32.
func param(word string) (gpuexec.Param, error) {
	if word == "u32" {
		return gpuexec.Param{Kind: gpuexec.ParamU32}, nil
	}
	if size, ok := strings.CutPrefix(word, "buffer:"); ok {
		if n, err := engine.ParseSize(size); err == nil && n < 1<<62 {
			return gpuexec.Param{Kind: gpuexec.ParamBuffer, Bytes: int64(n)}, nil
		}
	}
	return gpuexec.Param{}, fault.Invalidf("conform: executor", "%q, want buffer:BYTES or u32", word)
}

// at finds whose NAME or NAME@E is.
func (e *executor) at(c *engine.Call, text string) (*executor, string) {
	what, name, other := strings.Cut(text, "@")
	if !other {
		return e, what
	}
	return engine.At[*executor](c, name), what
}

func (e *executor) launch(c *engine.Call) (script.Result, error) {
	p := pace{world: c.World, begun: c.Begun}
	p.creator.Wait, p.creator.After = c.Or("wait", ""), c.Duration("after", 0)
	owner, name := e.at(c, c.Arg(0))
	asked := owner.named.Get(name)
	if asked == nil {
		return script.Result{}, &fault.Error{Op: "conform: launch", Key: name, Err: fault.ErrNotFound}
	}
	l := gpuexec.Launch{Grid: gpuexec.Size{c.Int("grid", 1)}, Kernel: engine.Must(asked.kernel(c.Ctx, owner.exec))}
	for _, text := range list(c.Or("args", "")) {
		owner, word := e.at(c, text)
		want := engine.Must(param(word))
		if want.Kind == gpuexec.ParamU32 {
			l.Args = append(l.Args, gpuexec.ValueArg(uint32(0)))
			continue
		}
		b := engine.Must(owner.exec.Alloc(c.Ctx, want.Bytes))
		defer b.Release()
		l.Args = append(l.Args, gpuexec.BufferArg(b))
	}
	return engine.Done(e.exec.Submit(context.WithValue(c.Ctx, paceKey{}, p), l))
}

// lose returns once the executor has seen that its device is gone.
func (e *executor) lose(c *engine.Call) (script.Result, error) {
	before := e.exec.Stats().Restarts
	if !e.fake.Lose() {
		return engine.OK(), nil // it is gone already
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for e.exec.Stats().Restarts == before {
		select {
		case <-tick.C:
		case <-c.Ctx.Done():
			return script.Result{}, c.Ctx.Err()
		}
	}
	return engine.OK(), nil
}

func (e *executor) count(c *engine.Call) (script.Result, error) {
	s := e.exec.Stats()
	counts := map[string]int64{"compiles": s.Compiles, "blob_loads": s.BlobLoads, "launches": s.Launches}
	return counted(counts, c.Arg(0), "%q, want compiles, blob_loads or launches")
}
