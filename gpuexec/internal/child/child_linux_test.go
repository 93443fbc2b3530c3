package child

import (
	"embed"
	"errors"
	"fmt"
	"os"
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
	if err := errors.Join(p.Requests.Encode(""), p.Replies.Decode(&all)); err != nil {
		t.Fatal(err)
	}
	return all
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
	_ = p.Requests.Encode("") // fails where the child has ended by now
	var reply map[string]string
	if err := p.Replies.Decode(&reply); err == nil {
		t.Fatal("it has answered")
	}
	if err := p.End(); !errors.Is(err, ErrAnother) {
		t.Errorf("it ended with %v, want ErrAnother", err)
	}
	if files(t, start(t, build)); Build(one) == Build(embed.FS{}) {
		t.Error("sources have no names of their own")
	}
}
