//go:build unix

package trust_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/blobstore/internal/trust"
)

var public = make(ed25519.PublicKey, ed25519.PublicKeySize)

// trusting is a list of one key, with another one revoked.
func trusting(id, revoked string) string {
	return fmt.Sprintf(`{"keys":[{"id":%q,"public":%q}],"revoked":[%q]}`, id, base64.StdEncoding.EncodeToString(public), revoked)
}

func opened(t *testing.T, path string) *trust.List {
	t.Helper()
	l, err := trust.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// P15: a change in place shows, even one of no other size after which the time of
// the content is set to what it was.
func TestChangeInPlace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	write(t, path, trusting("a", "b"))
	l := opened(t, path)
	var before, now unix.Stat_t
	if err := unix.Stat(path, &before); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(trusting("a", "a")), 0o600); err != nil {
		t.Fatal(err)
	}
	modified := time.Unix(before.Mtim.Unix())
	for now = before; now.Ctim == before.Ctim; { // the clock of a file system ticks slowly
		if err := errors.Join(os.Chtimes(path, modified, modified), unix.Stat(path, &now)); err != nil {
			t.Fatal(err)
		}
	}
	if now.Mtim != before.Mtim || now.Size != before.Size || now.Ino != before.Ino {
		t.Fatal("the file differs in more than its change time")
	}
	if got := l.Still("a", public); got.Reason != fault.Revoked {
		t.Errorf("%v, want it revoked", got)
	}
}

// P15, R3: what is no plain file is refused at once, and what cannot be read is
// trouble of the machine, over when that is.
func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	path, fifo := filepath.Join(dir, "trust.json"), filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, strange := range []string{fifo, dir} {
		if _, err := trust.Open(strange); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", strange, err)
		}
	}
	if _, err := trust.Open(path); !errors.Is(err, fault.ErrIO) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none there: %v", err)
	}
	write(t, path, trusting("a", "b")+strings.Repeat(" ", 1<<20))
	if _, err := trust.Open(path); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("too long: %v", err)
	}
	write(t, path, trusting("a", "b"))
	l := opened(t, path)
	write(t, path, trusting("a", "c"))
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 0, Max: files.Max}); err != nil {
		t.Fatal(err)
	}
	got, why := l.Still("a", public), l.Err()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if got.Reason != fault.UntrustedSigner || !errors.Is(why, fault.ErrIO) {
		t.Errorf("no file may be opened: %v, %v", got, why)
	}
	if got := l.Still("a", public); !got.None() || l.Err() != nil {
		t.Errorf("it may again: %v, %v", got, l.Err())
	}
}

// P15, P13: a list that others can write says nothing.
func TestWritableByOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trust.json")
	write(t, path, trusting("a", "b"))
	l := opened(t, path)
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := trust.Open(path); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%v: %v", mode, err)
		}
		if got := l.Still("a", public); got.Reason != fault.UntrustedSigner || !errors.Is(l.Err(), fault.ErrRefused) {
			t.Errorf("%v while it is open: %v, %v", mode, got, l.Err())
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := l.Still("a", public); !got.None() {
		t.Error(got)
	}
}

// P15, P13: nor does one of another user, unless that is root, or called root.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to run a child as somebody else")
	}
	dir, err := os.MkdirTemp("", "trust") // T.TempDir's parent is closed to others
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	copied, path := filepath.Join(dir, "binary"), filepath.Join(dir, "trust.json")
	write(t, path, trusting("a", "b"))
	if err := errors.Join(os.WriteFile(copied, binary, 0o755), os.Chmod(dir, 0o755), os.Chmod(path, 0o644)); err != nil {
		t.Fatal(err)
	}
	const somebody, another = 65534, 65533
	for owner, want := range map[int]string{0: "<nil>", somebody: "<nil>", another: "belongs to user 65533"} {
		if err := os.Chown(path, owner, 0); err != nil {
			t.Fatal(err)
		}
		for caller, want := range map[string]error{"": fault.ErrRefused, fmt.Sprint(owner): nil} {
			t.Setenv("SUDO_UID", caller)
			if owner == 0 {
				want = nil
			}
			if _, err := trust.Open(path); !errors.Is(err, want) {
				t.Errorf("of user %d, by root, called by user %q: %v, want %v", owner, caller, err, want)
			}
		}
		cmd := exec.Command(copied, "-child="+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: somebody, Gid: somebody}}
		if said, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(said), want) {
			t.Errorf("of user %d: %s, %v, want %s", owner, said, err, want)
		}
	}
}

// P15: a list with a relative path is read again from where it was, also after the working
// directory has become another one.
func TestListAfterTheWorkingDirectoryChanged(t *testing.T) {
	t.Chdir(t.TempDir())
	write := func(id, revoked string) {
		if err := os.WriteFile("trust.json", []byte(trusting(id, revoked)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ci", "old")
	l, err := trust.Open("trust.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if flaw := l.Still("ci", public); !flaw.None() || l.Err() != nil {
		t.Error(flaw, l.Err())
	}
	write("another", "ci") // in the new working directory: it is not the list
	if flaw := l.Still("ci", public); !flaw.None() {
		t.Error(flaw)
	}
}
