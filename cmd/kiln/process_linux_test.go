package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a pair of a pseudo terminal's ends.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminal here:", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Skip("no pseudo terminal here:", err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminal here:", err)
	}
	return master, slave
}

// screen keeps what a terminal was sent, and tells when some text has come.
type screen struct {
	text  bytes.Buffer
	until string
	shown chan struct{}
}

// watch reads the terminal until its last writer has closed it.
func (s *screen) watch(master io.Reader) {
	var chunk [4096]byte
	for {
		n, err := master.Read(chunk[:]) // EIO: nobody holds the other end
		s.text.Write(chunk[:n])
		if s.until != "" && bytes.Contains(s.text.Bytes(), []byte(s.until)) {
			close(s.shown)
			s.until = ""
		}
		if err != nil {
			return
		}
	}
}

// started runs the command as a process of its own with a terminal as stderr
// and calls then, if there is one, once the terminal shows until.
func started(t *testing.T, until string, then func(*os.Process), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	master, slave := terminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // should it hang: a busy machine takes its time
	defer cancel()
	cmd := exec.CommandContext(ctx, self, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, slave
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := slave.Close(); err != nil {
		t.Error(err)
	}
	s := &screen{until: until, shown: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.watch(master)
	}()
	if then != nil {
		select {
		case <-s.shown:
			then(cmd.Process)
		case <-ended:
		}
	}
	err = cmd.Wait()
	<-ended
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), s.text.String()
}

// scratch lists the folders that a process holds for the kernels it compiles.
func scratch(t *testing.T, p *os.Process) (held []string) {
	t.Helper()
	open, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(p.Pid), "fd", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		to, err := os.Readlink(fd)
		if err == nil && strings.HasPrefix(filepath.Base(to), "kiln-kernels-") {
			held = append(held, to)
		}
	}
	return held
}

// A run that is interrupted ends with 130, its report and one line beside it, and
// leaves no folder behind.
func TestInterrupted(t *testing.T) {
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		var held []string
		interrupt := func(p *os.Process) {
			held = scratch(t, p)
			if err := p.Signal(signal); err != nil {
				t.Error(err)
			}
		}
		plot := filepath.Join(t.TempDir(), "run.png")
		code, out, screen := started(t, " of 3,000", interrupt, "run", "--model", "bert_tiny_l2_h128", "--passes", "1000", "--plot", plot)
		if code != exitInterrupted || !strings.Contains(out, "outputs: ") {
			t.Errorf("%v: exit %d, stdout %q", signal, code, out)
		}
		lines := strings.Split(strings.TrimSpace(screen), "\n")
		if last := lines[0][strings.LastIndexByte(strings.TrimSpace(lines[0]), '\r')+1:]; len(lines) != 1 || !strings.HasPrefix(last, "kiln: run: interrupted") {
			t.Errorf("%v: stderr %q", signal, screen)
		}
		if _, err := os.Stat(plot); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: a picture of half a run: %v", signal, err)
		}
		if len(held) == 0 {
			t.Errorf("%v: it held no folder", signal)
		}
		for _, dir := range held {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%v: left behind: %s, %v", signal, dir, err)
			}
		}
	}
}

// An archive may come through a pipe, which is read once.
func TestImportFromAPipe(t *testing.T) {
	archive, pipe := filepath.Join(t.TempDir(), "archive"), filepath.Join(t.TempDir(), "pipe")
	done(t, "cache", "export", archive, "--dir", stocked(t, "a", "b"))
	text, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	for cut, want := range map[int]int{0: exitDone, 1: exitUsage} {
		written := make(chan error)
		go func() { written <- os.WriteFile(pipe, text[:len(text)-cut], 0) }()
		code, out, errs := invoke("cache", "import", pipe, "--dir", filepath.Join(t.TempDir(), "store"), "--json")
		if code != want || (code == exitDone) != strings.HasSuffix(out, "\"rejected\":{},\"taken\":2}\n") || (code == exitDone) != (errs == "") {
			t.Errorf("without its last %d bytes: exit %d, %q, %q", cut, code, out, errs)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
}

// A command that waits for a pipe, to be opened or to say something, is
// interrupted by the first signal.
func TestInterruptedAtAPipe(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, key := stocked(t, "a"), file(t, "key", "a")
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no pipes here:", err)
	}
	for _, args := range [][]string{
		{"cache", "get", "--dir", dir, "--key-file", pipe}, {"cache", "put", "--dir", dir, "--key-file", key, "--value-file", pipe},
		{"cache", "get", "--dir", dir, "--key-file", key, "--identity", pipe}, {"cache", "import", pipe, "--dir", dir},
		{"warm", "--manifest", pipe, "--store", dir}, {"run", "--trace", pipe}, {"run", "--model", pipe},
		{"shapes", "advise", "--trace", pipe}, {"shapes", "simulate", "--key", "exact", "--trace", pipe},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, self, args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var w *os.File
		for w == nil && ctx.Err() == nil { // until it has come to the pipe
			if w, err = os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0); err != nil {
				pause := time.NewTimer(5 * time.Millisecond)
				<-pause.C
			}
		}
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		err := cmd.Wait()
		name, _, _ := strings.Cut(strings.Join(args, " "), " --")
		name, _, _ = strings.Cut(name, " "+pipe)
		if code := cmd.ProcessState.ExitCode(); code != exitInterrupted || out.Len() > 0 || errs.String() != "kiln: "+name+": interrupted: run it again\n" {
			t.Errorf("kiln %s: %v, stdout %q, stderr %q", strings.Join(args, " "), err, out.String(), errs.String())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// On a terminal a run shows how far it is, and wipes that off in the end. A
// report comes on stdout only. On anything else stderr stays empty, which
// every other test here sees.
func TestProgressOnATerminal(t *testing.T) {
	code, out, screen := started(t, "", nil, "run", "--model", "bert_tiny_l2_h128", "--requests", "500", "--passes", "1")
	if code != exitDone || !strings.Contains(out, "artefacts compiled") {
		t.Fatalf("exit %d, %q", code, out)
	}
	for _, want := range []string{"\rcold  ", "░", " of 500", "/s  ", " left"} {
		if !strings.Contains(screen, want) {
			t.Errorf("no %q on the terminal: %q", want, screen)
		}
	}
	if !strings.HasSuffix(screen, "\r") || strings.Contains(screen, "\n") {
		t.Errorf("the line is not wiped off: %q", screen)
	}
}
