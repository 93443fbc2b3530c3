package child

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

//go:embed child.go
var one embed.FS

const name, build = "kiln: a child of a test", "this build"

// A child says at each request what files it has, and ends at one that is no "".
func init() {
	if _, serves := Serves(name); !serves {
		return
	}
	requests, replies := Pipes(build)
	for {
		var how string
		if requests.Decode(&how) != nil {
			os.Exit(0)
		}
		var number int
		switch n, _ := fmt.Sscanf(how, "exit %d", &number); {
		case n == 1:
			os.Exit(number)
		case how != "":
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		files := make(map[string]string)
		entries, _ := os.ReadDir("/proc/self/fd")
		for _, e := range entries {
			if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil { // not that of the folder
				files[e.Name()] = path
			}
		}
		_ = replies.Encode(files)
	}
}

func start(t *testing.T, build string) *Process {
	t.Helper()
	p, err := Start(name, build, "", func(env []string) []string { return env })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.End() })
	return p
}

// files are those that a child has open.
func files(t *testing.T, p *Process) (all map[string]string) {
	t.Helper()
	if err := errors.Join(p.Send(""), p.Replies.Decode(&all)); err != nil {
		t.Fatal(err)
	}
	return all
}

// ended is the end of a child that is asked to end so.
func ended(t *testing.T, p *Process, how string) error {
	t.Helper()
	files(t, p) // it has begun
	if err := p.Requests.Encode(how); err != nil {
		t.Fatal(err)
	}
	<-p.Ended
	return p.End()
}

// E2: a socket that a host in C has open does not stay open for as long as a child waits.
func TestChildHasItsPipesOnly(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0) // without SOCK_CLOEXEC, as C has it
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if _, err := unix.FcntlInt(uintptr(pair[0]), unix.F_DUPFD, 100); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(100)
	for number, path := range files(t, start(t, build)) {
		if strings.HasPrefix(path, "socket:") {
			t.Errorf("a child has %s as %s", path, number)
		}
	}
}

// R3: a child of another build than the library's gets no request.
func TestChildOfAnotherBuild(t *testing.T) {
	p := start(t, "another build")
	if err := p.Send(""); !errors.Is(err, ErrAnother) {
		t.Errorf("%v, want ErrAnother", err)
	}
	var reply map[string]string
	if err := p.Replies.Decode(&reply); err == nil {
		t.Fatal("it has answered")
	}
	<-p.Ended // by itself
	if err := p.End(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if files(t, start(t, build)); Build(one) == Build(embed.FS{}) {
		t.Error("sources have no names of their own")
	}
}

// R3: how a child ended is told, or that nobody knows it: a host in C may ignore the ends of
// its children, or wait for all of them. No wait hangs.
func TestEndIsTold(t *testing.T) {
	for how, want := range map[string]string{"exit 3": "exit status 3", "exit 65": "exit status 65", "killed": "signal: killed"} {
		if err := ended(t, start(t, build), how); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", how, err, want)
		}
		signal.Ignore(syscall.SIGCHLD)
		err := ended(t, start(t, build), how)
		handled := make(chan os.Signal, 1)
		signal.Notify(handled, syscall.SIGCHLD) // Reset alone would leave it ignored
		signal.Stop(handled)
		if !errors.Is(err, ErrUntold) {
			t.Errorf("%s, and SIGCHLD is ignored: %v, want ErrUntold", how, err)
		}
		p := start(t, build)
		files(t, p)
		waits := make(chan error, 1)
		go func() {
			_, err := syscall.Wait4(-1, nil, 0, nil)
			waits <- err
		}()
		if err := ended(t, p, how); !errors.Is(err, ErrUntold) && !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s, and this program waits for all: %v, want ErrUntold or %s", how, err, want)
		}
		if err := <-waits; err != nil && !errors.Is(err, syscall.ECHILD) {
			t.Error(err)
		}
	}
	var exit *exec.ExitError
	if err := start(t, build).End(); !errors.As(err, &exit) {
		t.Errorf("a child that is ended: %v", err)
	}
}
