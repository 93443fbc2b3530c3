// Package child starts the running executable again, or the program beside the library that
// this code is in (package self), as a process that does what may end a process, or never
// come to an end: a driver or a compiler that is not to be trusted with this one.
//
// A child serves from the init function of the package that has the work. Its packages are
// initialised up to that one, and main does not run, so that any program that has the
// package can be started so, a test too.
package child

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/kiln-cache/kiln/internal/self"
)

// Serves tells whether this process was started to be a child of that name, and with
// which argument. A library serves nobody: main of its program runs beside it. Nor does a
// program that has more rights than whoever starts it: its arguments are a stranger's. Every
// program that has a package with such work asks when it starts, so what costs least comes
// first.
func Serves(name string) (argument string, serves bool) {
	if len(os.Args) != 2 || os.Args[0] != name || self.Raised() || self.Loaded() {
		return "", false
	}
	return os.Args[1], true
}

// Pipes are a child's ends. When whoever started it has ended, no request comes any more and
// no reply is taken: a child must then end, too, be it at work. One of another build than
// whoever started it ends here, and what it got from there by chance is closed.
func Pipes(build string) (requests *gob.Decoder, replies *gob.Encoder) {
	closeInherited()
	requests, replies = gob.NewDecoder(os.NewFile(3, "requests")), gob.NewEncoder(os.NewFile(lastPipe, "replies"))
	_ = replies.Encode(build) // fails where nobody listens any more, who sends nothing either
	var theirs string
	if err := requests.Decode(&theirs); err == nil && theirs != build {
		os.Exit(0)
	}
	return requests, replies
}

const lastPipe = 4

// Build names the sources of a package that serves as a child: a library, and the program
// beside it, may be of two builds.
func Build(source embed.FS) string {
	h := sha256.New()
	files, _ := source.ReadDir(".") // sorted by name
	for _, f := range files {
		text, _ := source.ReadFile(f.Name())
		fmt.Fprintf(h, "%q %d\n%s", f.Name(), len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Errors of Send and of End.
var (
	ErrAnother = errors.New(self.Child + " is of another build than the library that starts it: install the two of one build, and start the program anew")
	ErrUntold  = errors.New("how it ended is not known: this program ignores SIGCHLD, or waits for children that it has not started")
)

// Process is a child, used by one goroutine at a time; Kill may be called by any.
type Process struct {
	Cmd      *exec.Cmd
	Requests *gob.Encoder
	Replies  *gob.Decoder
	Ended    <-chan struct{} // closed once the child has ended and is no zombie, by itself too
	build    string          // of both; empty once the child has said so
	how      error           // it ended; for whoever has seen Ended closed
	ends     [2]*os.File
}

// Start starts a child of that name and build with one argument. env makes its environment
// of this process's.
func Start(name, build, argument string, env func([]string) []string) (_ *Process, err error) {
	if self.Raised() {
		return nil, errors.New("a program with more rights than its user is not started again")
	}
	program, err := self.Start()
	if err != nil {
		return nil, err
	}
	requests, to, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requests.Close()
	from, replies, err := os.Pipe()
	if err != nil {
		_ = to.Close()
		return nil, err
	}
	defer replies.Close()
	cmd := exec.Command(program)
	cmd.Args, cmd.Env, cmd.ExtraFiles = []string{name, argument}, env(cmd.Environ()), []*os.File{requests, replies}
	if err := cmd.Start(); err != nil {
		_, _ = to.Close(), from.Close()
		return nil, err
	}
	ended := make(chan struct{})
	p := &Process{Cmd: cmd, Requests: gob.NewEncoder(to), Replies: gob.NewDecoder(from), Ended: ended, build: build, ends: [2]*os.File{to, from}}
	go func() { // ends with the child, which End waits for
		p.how = cmd.Wait()
		switch {
		case errors.Is(p.how, syscall.ECHILD): // somebody else was told
			p.how = ErrUntold
		case p.how != nil:
			p.how = fmt.Errorf("it ended with %w", p.how)
		}
		close(ended)
	}()
	_ = p.Requests.Encode(build) // fails where the child has ended: so will the first request
	return p, nil
}

// Send sends a request. The first time it waits until the child has said which build it is of,
// also where the request could not be sent: a child of another build may have ended by then.
// ErrAnother if it is one. How it ended does not tell: it may be known to nobody, and a program
// may end with any code.
func (p *Process) Send(request any) error {
	err := p.Requests.Encode(request)
	return cmp.Or(p.meet(), err)
}

func (p *Process) meet() error {
	var theirs string
	switch {
	case p.build == "":
		return nil
	case p.Replies.Decode(&theirs) != nil:
		return errors.New("it has not begun")
	case theirs != p.build:
		return ErrAnother
	}
	p.build = ""
	return nil
}

// Kill ends the child, whatever it does. Once it has ended its number may be a stranger's,
// where somebody else waited for it.
func (p *Process) Kill() {
	select {
	case <-p.Ended:
	default:
		_ = p.Cmd.Process.Kill()
	}
}

// End is Kill, waits for the end, and says how the child ended, if not without an error:
// ErrUntold, or what os/exec says.
func (p *Process) End() error {
	p.Kill()
	for _, f := range p.ends {
		_ = f.Close()
	}
	<-p.Ended
	return p.how
}
