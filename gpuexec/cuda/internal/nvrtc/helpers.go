package nvrtc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/child"
	"github.com/kiln-cache/kiln/internal/guard"
)

const (
	mostAck     = 10 * time.Second // for a helper that has served to say that it got a request
	mostStart   = time.Minute      // for a new one
	mostCompile = 5 * time.Minute
	mostIdle    = 30 * time.Second // then a helper is ended
	mostMemory  = 512 << 20        // bytes of a helper that is kept: a new one has some 85 MiB
	mostAtWork  = 4 << 30          // bytes that compiles may add to those of a new one: it ends where it asks for more
)

// Helpers compiles in processes, each with one compile at a time. They are the running
// executable, started again: its packages are initialised up to this one, and main does
// not run. One that dies, does not answer, or has more than 512 MiB after a compile is
// replaced. They end with Close, with this process, or when they have been idle for half a
// minute. Safe for concurrent use.
type Helpers struct {
	path     string        // of the compiler
	slots    chan struct{} // one for each process that there may be
	patience time.Duration // with one that nobody uses
	begins   time.Duration // patience with a new one
	memory   int64         // most bytes of one that is kept
	users    int           // who share them; the lock of shared is theirs
	mu       struct {
		sync.Mutex
		idle    []*process // the last one was used last
		closed  bool
		started int
	}
}

// NewHelpers may start n processes for the compiler of that path, when there is work for
// them.
func NewHelpers(path string, n int) *Helpers {
	return &Helpers{path: path, slots: make(chan struct{}, max(1, n)), patience: mostIdle, begins: mostStart, memory: mostMemory}
}

// shared are the helpers that Share gave, by the path of their compiler.
var shared = struct {
	sync.Mutex
	helpers map[string]*Helpers
}{helpers: make(map[string]*Helpers)}

// Share gives the helpers of this process for the compiler of that path: one for each core
// that Go uses. Leave gives them back.
func Share(path string) *Helpers {
	shared.Lock()
	defer shared.Unlock()
	h := shared.helpers[path]
	if h == nil {
		h = NewHelpers(path, runtime.GOMAXPROCS(0))
		shared.helpers[path] = h
	}
	h.users++
	return h
}

// Leave is Close once all have left who share them.
func (h *Helpers) Leave() {
	shared.Lock()
	h.users--
	last := h.users == 0
	if last {
		delete(shared.helpers, h.path)
	}
	shared.Unlock()
	if last {
		h.Close()
	}
}

// LeaveIdle is Leave without Close: whoever shares them soon finds processes that wait, which
// end once they have been idle, or with a later Leave.
func (h *Helpers) LeaveIdle() {
	shared.Lock()
	defer shared.Unlock()
	h.users--
}

// process is a helper, used by one goroutine at a time.
type process struct {
	*child.Process
	served   bool          // a request
	killed   bool          // or about to be: whoever it answered had left
	patience time.Duration // until it has said that it got one
	idle     *time.Timer   // ends it; nil = it has not waited yet
}

// Compile compiles a text. What takes longer than five minutes is ErrInvalid, and so is a
// text that a second process has died of, by its stack or by more than 4 GiB. Where others
// have killed the second, too, or it crashed before it had the text, nothing is said of
// that: ErrOverloaded. Where no process can be started, or two end by themselves or say nothing,
// ErrUnavailable says why. Other errors are those of Library.Compile, and the
// context's.
func (h *Helpers) Compile(ctx context.Context, r Request) (Output, error) {
	if err := r.Check(); err != nil {
		return Output{}, err
	}
	select {
	case h.slots <- struct{}{}:
		defer func() { <-h.slots }()
	case <-ctx.Done():
		return Output{}, ctx.Err()
	}
	if err := ctx.Err(); err != nil { // the other case may have been taken all the same
		return Output{}, err
	}
	within, cancel := context.WithTimeout(guard.Context(ctx), mostCompile)
	defer cancel()
	for died := 0; ; {
		p, err := h.take()
		if err != nil {
			return Output{}, failure(fault.ErrUnavailable, "no process for the compiler: %w: see cuda.Config.InProcess", err)
		}
		out, begun, err := p.do(within, r)
		if err == nil {
			h.keep(p)
			return out.Output, out.err()
		}
		ended := p.End()
		switch {
		case ctx.Err() != nil:
			return Output{}, ctx.Err()
		case within.Err() != nil:
			return Output{}, failure(fault.ErrInvalid, "the compiler has not come to an end within %v", mostCompile)
		case errors.Is(err, child.ErrAnother):
			return Output{}, failure(fault.ErrUnavailable, "no process for the compiler: %w", child.ErrAnother)
		}
		if begun || !p.served {
			died++
		}
		switch {
		case died < 2:
		case errors.Is(err, errSilent):
			return Output{}, failure(fault.ErrUnavailable, "the compiler's process %w: a program that waits while its packages are initialised cannot be started for it: see cuda.Config.InProcess", err)
		case begun && killed(ended):
			return Output{}, failure(fault.ErrOverloaded, "the compiler's process was killed twice (%v): the machine may be short of memory", ended)
		case !begun && crashed(ended):
			return Output{}, failure(fault.ErrOverloaded, "the compiler's process crashed, or was killed, twice before it had the text (%v): the machine may be short of memory; "+
				"a program whose packages crash while they are initialised cannot be started for it: see cuda.Config.InProcess", ended)
		case begun:
			return Output{}, failure(fault.ErrInvalid, "the compiler's process ended twice over these texts of %d bytes, which may need too much of its stack, or more than %d GiB of memory, the most that it may take "+
				"(constants need up to some 250 times their text: put large ones into a buffer): %v", r.bytes(), mostAtWork>>30, cmp.Or(ended, err))
		default:
			return Output{}, failure(fault.ErrUnavailable, "the compiler's process does not answer (%v): a program that ends while its packages are initialised cannot be started for it: see cuda.Config.InProcess", cmp.Or(ended, err))
		}
	}
}

// byOthers are the signals that a compiler does not send itself, but a machine without memory,
// whoever ends a service, and a terminal do.
var byOthers = []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}

// killed reports whether a process was ended by others, or may have been.
func killed(ended error) bool {
	status := statusOf(ended)
	return errors.Is(ended, child.ErrUntold) || status.Signaled() && slices.Contains(byOthers, status.Signal())
}

// crashed reports whether a process was ended by a signal, whoever sent it, or by Go, which
// ends what it cannot go on with so; or may have been.
func crashed(ended error) bool {
	const byGo = 2
	status := statusOf(ended)
	return errors.Is(ended, child.ErrUntold) || status.Signaled() || status.ExitStatus() == byGo
}

// statusOf is how a process ended; zero = by itself, without an error.
func statusOf(ended error) (status syscall.WaitStatus) {
	if exit, ok := errors.AsType[*exec.ExitError](ended); ok {
		status, _ = exit.Sys().(syscall.WaitStatus)
	}
	return status
}

// take gives the helper that was used last, or a new one, which is dropped when it dies.
func (h *Helpers) take() (*process, error) {
	if p := h.waiting(); p != nil {
		return p, nil
	}
	p, err := start(h.path)
	if err != nil {
		return nil, err
	}
	p.patience = h.begins
	go func() {
		<-p.Ended
		h.drop(p)
	}()
	return p, nil
}

// waiting takes a helper out of those that wait, if there is one.
func (h *Helpers) waiting() *process {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.mu.idle)
	if n == 0 {
		h.mu.started++
		return nil
	}
	p := h.mu.idle[n-1]
	h.mu.idle = h.mu.idle[:n-1]
	p.idle.Stop()
	return p
}

// keep makes a helper wait for the next request, or ends it where it has grown too large, or
// is being killed.
func (h *Helpers) keep(p *process) {
	ends := p.killed || p.memory() > h.memory
	h.mu.Lock()
	select {
	case <-p.Ended: // nobody will drop it
		ends = true
	default:
		ends = ends || h.mu.closed
	}
	if !ends {
		h.mu.idle = append(h.mu.idle, p)
		p.idle = time.AfterFunc(h.patience, func() { h.drop(p) })
	}
	h.mu.Unlock()
	if ends {
		_ = p.End()
	}
}

// drop ends a helper that waits, and leaves one alone that has been taken.
func (h *Helpers) drop(p *process) {
	h.mu.Lock()
	i := slices.Index(h.mu.idle, p)
	if i >= 0 {
		h.mu.idle = slices.Delete(h.mu.idle, i, i+1)
	}
	h.mu.Unlock()
	if i >= 0 {
		_ = p.End()
	}
}

// Close ends the helpers; one that compiles ends after that.
func (h *Helpers) Close() {
	h.mu.Lock()
	idle := h.mu.idle
	h.mu.idle, h.mu.closed = nil, true
	h.mu.Unlock()
	for _, p := range idle {
		p.idle.Stop()
		_ = p.End()
	}
}

// start starts a helper. Of the environment it has what the loader needs.
func start(path string) (*process, error) {
	p, err := child.Start(helperName, build(), path, func(env []string) []string {
		loaders := slices.DeleteFunc(env, func(variable string) bool { return !strings.HasPrefix(variable, "LD_LIBRARY_PATH=") })
		return append(loaders, "GOTRACEBACK=none")
	})
	if err != nil {
		return nil, err
	}
	return &process{Process: p}, nil
}

// errSilent is that of a helper which has not said in time that it has begun.
var errSilent = errors.New("says nothing")

// do has the helper compile. It is ended where the context ends, or where it does not say
// in time that it has begun.
func (p *process) do(ctx context.Context, r Request) (answer reply, begun bool, err error) {
	stop := context.AfterFunc(ctx, p.Kill)
	defer func() { p.killed = !stop() }() // the answer may have come before that
	late := time.AfterFunc(p.patience, p.Kill)
	defer late.Stop()
	err = p.Send(r)
	if err == nil {
		err = p.Replies.Decode(&answer)
	}
	if !late.Stop() { // it is being killed, also where it has just answered
		err = fmt.Errorf("%w for %v", errSilent, p.patience)
	}
	if err != nil {
		return reply{}, false, err
	}
	err = p.Replies.Decode(&answer)
	if err == nil {
		p.served, p.patience = true, mostAck
	}
	return answer, true, err
}

// memory is the bytes that the helper has in memory; 0 = not known.
func (p *process) memory() int64 { return memoryOf(strconv.Itoa(p.Cmd.Process.Pid), 1) }

// memoryOf is a column of what Linux says of a process's memory, in bytes; 0 = not known.
func memoryOf(process string, column int) int64 {
	text, _ := os.ReadFile("/proc/" + process + "/statm")
	columns := strings.Fields(string(text))
	if column >= len(columns) {
		return 0
	}
	pages, _ := strconv.ParseInt(columns[column], 10, 64)
	return pages * int64(os.Getpagesize())
}
