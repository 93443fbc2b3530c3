//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-cache/kiln/fault"
)

// A variable of a package is there before its init functions run: a process whose compiler
// has such a path is no helper yet when it ends, or waits. Where a folder has a file of the
// name once, so does the first process for a compiler of that folder.
var _ = func() (none struct{}) {
	if len(os.Args) != 2 || os.Args[0] != helperName {
		return
	}
	how, early := strings.CutPrefix(os.Args[1], "early: ")
	if once := filepath.Join(filepath.Dir(os.Args[1]), "once"); !early && os.Remove(once) == nil {
		how, early = "signal 5", true
	}
	if !early {
		return
	}
	switch what, number, _ := strings.Cut(how, " "); what {
	case "panic":
		panic("early")
	case "exit":
		n, _ := strconv.Atoi(number)
		os.Exit(n)
	case "signal":
		n, _ := strconv.Atoi(number)
		_ = syscall.Kill(os.Getpid(), syscall.Signal(n))
	}
	_, _ = io.Copy(io.Discard, os.NewFile(3, "requests")) // until it is ended
	os.Exit(0)
	return
}()

// R3: a process that crashes, or is killed, before it has the text says nothing of that, nor of
// what is installed: it may be tried again. One that ends by itself, or waits, does so each time.
func TestEndedBeforeItsFirstReply(t *testing.T) {
	for how, want := range map[string]error{
		"signal 9": fault.ErrOverloaded, "signal 15": fault.ErrOverloaded, "signal 11": fault.ErrOverloaded, "signal 5": fault.ErrOverloaded,
		"panic": fault.ErrOverloaded, "exit 0": fault.ErrUnavailable, "exit 1": fault.ErrUnavailable, "wait": fault.ErrUnavailable,
	} {
		h := NewHelpers("early: "+how, 1)
		if how == "wait" {
			h.begins = 100 * time.Millisecond // nothing comes later either
		}
		_, err := h.Compile(bg, kernel(1))
		if kinds := []error{fault.ErrOverloaded, fault.ErrUnavailable, fault.ErrInvalid}; !errors.Is(err, want) || is(err, kinds) != 1 {
			t.Errorf("%s: %v, want %v", how, err, want)
		} else if text := err.Error(); !strings.Contains(text, "InProcess") || strings.Contains(text, "does not answer") != strings.HasPrefix(how, "exit") {
			t.Errorf("%s: %v, want what to do", how, err)
		}
		if h.mu.started != 2 {
			t.Errorf("%s: %d processes were started, want 2", how, h.mu.started)
		}
		h.Close()
	}
}

// is counts the kinds that an error is of.
func is(err error, kinds []error) (n int) {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			n++
		}
	}
	return n
}

// A process that crashes before it is a helper is replaced, and the request is served.
func TestCrashedBeforeItsFirstReply(t *testing.T) {
	l, dir := need(t), t.TempDir()
	for _, path := range append(builtins(l.Path), l.Path) {
		if err := os.Symlink(path, filepath.Join(dir, filepath.Base(path))); err != nil {
			t.Fatal(err)
		}
	}
	once := filepath.Join(dir, "once")
	if err := os.WriteFile(once, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := NewHelpers(filepath.Join(dir, filepath.Base(l.Path)), 1)
	defer h.Close()
	if out, err := h.Compile(bg, kernel(1)); err != nil || len(out.Cubin) == 0 || h.mu.started != 2 {
		t.Errorf("%v, %d bytes, %d processes", err, len(out.Cubin), h.mu.started)
	}
	if _, err := os.Stat(once); err == nil {
		t.Error("none crashed")
	}
}

// A helper that is killed while it waits is no zombie and is not taken, though nothing is
// compiled, and its files are closed.
func TestKilledWhileItWaits(t *testing.T) {
	h := helpers(t, 1)
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	p := h.mu.idle[0]
	if err := syscall.Kill(p.Cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waits := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.mu.idle) > 0
	}
	for deadline := time.Now().Add(time.Minute); waits() || !errors.Is(syscall.Kill(p.Cmd.Process.Pid, 0), syscall.ESRCH); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after a minute it may be taken: %t, or is a zombie", waits())
		}
	}
	h.keep(p) // as one that dies between its reply and this
	if waits() {
		t.Error("one that has ended is kept")
	}
	if _, err := h.Compile(bg, kernel(2)); err != nil || h.mu.started != 2 {
		t.Errorf("after that: %v, %d processes", err, h.mu.started)
	}
}

// R3: a helper whose caller leaves while its answer comes is ended, and no other call gets it:
// that would die of another's leaving.
func TestLeftWhileTheAnswerComes(t *testing.T) {
	h := NewHelpers("early: wait", 1)
	defer h.Close()
	for range 10 {
		p, err := h.take()
		if err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(bg)
		var answers bytes.Buffer
		if e := gob.NewEncoder(&answers); errors.Join(e.Encode(build()), e.Encode(reply{}), e.Encode(reply{Output: Output{Log: "done"}})) != nil {
			t.Fatal("no answers")
		}
		p.Requests = gob.NewEncoder(io.Discard)
		p.Replies = gob.NewDecoder(reader(func(into []byte) (int, error) {
			if answers.Len() < 10 { // the last of it
				leave()
			}
			return answers.Read(into[:1])
		}))
		if answer, begun, err := p.do(ctx, kernel(1)); err != nil || !begun || answer.Output.Log != "done" {
			t.Errorf("%q, %v, want the answer, which came", answer.Output.Log, err)
		}
		h.keep(p)
		h.mu.Lock()
		if slices.Contains(h.mu.idle, p) {
			t.Error("a helper that is being ended may be taken")
		}
		h.mu.Unlock()
		<-p.Ended
	}
}

type reader func(into []byte) (int, error)

func (r reader) Read(into []byte) (int, error) { return r(into) }

// What leaves helpers idle leaves them to a call that comes soon. They end with the last one
// that leaves them otherwise.
func TestLeaveIdle(t *testing.T) {
	l := need(t)
	h := Share(l.Path)
	h.patience = time.Hour
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Fatal(err)
	}
	h.LeaveIdle()
	next := Share(l.Path)
	if _, err := next.Compile(bg, kernel(2)); err != nil || next != h || h.mu.started != 1 {
		t.Fatalf("%v, %d processes, the same helpers: %t", err, h.mu.started, next == h)
	}
	p := h.mu.idle[0]
	next.LeaveIdle()
	if h.users != 0 {
		t.Fatalf("%d users are left", h.users)
	}
	Share(l.Path).Leave()
	<-p.Ended
}

// K6: texts that a helper could not receive are refused, whichever of them it is that is long.
func TestTooMuchText(t *testing.T) {
	part := strings.Repeat("// text\n", mostText/64)
	most := Request{Includes: make(map[string]string)}
	for i := range 8 {
		most.Includes[fmt.Sprint(i)] = part[1:]
	}
	if n := most.bytes(); n != mostText {
		t.Fatalf("%d bytes", n)
	}
	if err := most.Check(); !errors.Is(err, fault.ErrInvalid) { // for want of a target, which is looked at next
		t.Errorf("as many bytes as there may be: %v", err)
	}
	for what, r := range map[string]Request{"a text": {Text: "a"}, "a macro's name": {Defines: map[string]string{"A": ""}}, "a macro": {Defines: map[string]string{"": "1"}},
		"an option": {Options: []string{"1"}}} {
		r.Includes = most.Includes
		if err := r.Check(); !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(err.Error(), fmt.Sprint(mostText)) {
			t.Errorf("with %s: %v, want ErrTooLarge with the bound", what, err)
		}
	}
}
