//go:build unix

package blobstore_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

// child starts this binary again to do some work in a directory.
func (r *rig) child(work ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-child="+strings.Join(work, ","))
	cmd.Stderr = os.Stderr
	r.must(cmd.Start())
	return cmd
}

var ahead atomic.Int64 // of a child's clock, in nanoseconds

// runChild: verb,dir,capacity,... ; every child has the default identity.
func runChild(words []string) int {
	capacity, _ := strconv.ParseInt(words[2], 10, 64)
	level := blobstore.None
	if words[0] == "acks" {
		level = blobstore.Durability(words[3])
	}
	cfg := blobstore.Config{
		Dir: words[1], Capacity: limit.Of(capacity), Durability: level, Lease: time.Second,
		Identity: func(string) gpuexec.Identity { return defaultIdentity() },
		Aborts:   func(string) bool { return true },
		Now:      func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) },
	}
	if words[0] == "prune" {
		blobstore.SetFS(&cfg, func(root string) vfs.FS { return deadly{vfs.Dir(root)} })
	}
	if words[0] == "late" {
		blobstore.SetFS(&cfg, func(root string) vfs.FS { return latecomer{vfs.Dir(root), words[3], words[4]} })
		if words[4] == "published" { // with what others have
			cfg.Hash = func(string) uint64 { return 7 }
		}
	}
	s, err := blobstore.Open(background, cfg)
	if err == nil {
		err = childVerbs[words[0]](s, words[3:])
	}
	if err == nil {
		err = s.Close(background)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

// deadly kills its process when that has removed a folder.
type deadly struct{ vfs.FS }

func (d deadly) RemoveAll(name string) error {
	err := d.FS.RemoveAll(name)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	return err
}

// latecomer is a file system whose process stands still before it takes something of an entry,
// until it is told to go on, and is killed when it has. Where it takes a file, the folder cannot
// be moved, and where it takes it to another name there, tmp/ has no room for it. Or it stands still
// before it publishes one.
type latecomer struct {
	vfs.FS
	gate, at string // folder of "reached" and "go"; last element of the name that it takes something to
}

func (l latecomer) Rename(from, to string) error {
	is, _ := path.Match(l.at, path.Base(to))
	switch {
	case l.at == "published" && strings.HasPrefix(to, backend+"/"):
	case !strings.HasPrefix(from, backend+"/"):
		return l.FS.Rename(from, to)
	case l.at != "*+*" && strings.HasPrefix(to, "tmp/") && (strings.Count(from, "/") == 2 || l.at == "gone*"):
		return &vfs.Fault{Op: "rename", Name: to, Err: syscall.EXDEV}
	case !is:
		return l.FS.Rename(from, to)
	}
	err := os.WriteFile(filepath.Join(l.gate, "reached"), nil, 0o600)
	for ; err == nil; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(l.gate, "go")); err == nil {
			break
		}
	}
	_ = l.FS.Rename(from, to)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	return err
}

var childVerbs = map[string]func(*blobstore.Store, []string) error{
	// puts FROM TO BYTES: stores that many keys
	"puts": func(s *blobstore.Store, words []string) error {
		from, _ := strconv.Atoi(words[0])
		to, _ := strconv.Atoi(words[1])
		size, _ := strconv.Atoi(words[2])
		for i := from; i < to; i++ {
			if err := s.Put(background, backend, fmt.Sprintf("k%d", i), payload(fmt.Sprintf("v%d", i), size), time.Second); err != nil {
				return err
			}
		}
		return nil
	},
	// acks DURABILITY: stores keys without end, four at a time and no more than 200 a
	// second, and prints each that was acknowledged
	"acks": func(s *blobstore.Store, words []string) error {
		for i := 0; ; i += 4 {
			time.Sleep(20 * time.Millisecond)
			var wg sync.WaitGroup
			var failed [4]error
			for j := i; j < i+4; j++ {
				wg.Go(func() {
					failed[j-i] = s.Put(background, backend, fmt.Sprintf("k%d", j), payload(fmt.Sprintf("v%d", j), 700+j*7%4000), time.Second)
				})
			}
			wg.Wait()
			if err := errors.Join(failed[:]...); err != nil {
				return err
			}
			for j := i; j < i+4; j++ {
				fmt.Printf("k%d\n", j)
			}
		}
	},
	// crowd NAME: stores keys on a disk that others fill too
	"crowd": func(s *blobstore.Store, words []string) error {
		return crowd(s, words[0], crowdKeys, func() { ahead.Add(int64(blobstore.LongestPause)) })
	},
	// put KEY VALUE
	"put": func(s *blobstore.Store, words []string) error {
		return s.Put(background, backend, words[0], []byte(words[1]), time.Second)
	},
	// build KEY VALUE DURATION LOG: obtains, or builds and saves. The duration may be
	// a path: the build takes until it is there.
	"build": func(s *blobstore.Store, words []string) error {
		_, c, miss, err := s.Obtain(background, backend, words[0])
		if err != nil || miss.None() {
			return err
		}
		log, err := os.OpenFile(words[3], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		fmt.Fprintln(log, words[0])
		d, err := time.ParseDuration(words[2])
		for time.Sleep(d); err != nil; time.Sleep(5 * time.Millisecond) {
			_, err = os.Lstat(words[2])
		}
		return c.Save(background, []byte(words[1]), d)
	},
	// prune: is killed when it has moved all entries and removed the first
	"prune": func(s *blobstore.Store, _ []string) error { return s.Prune(background, 0) },
	// late GATE AT: is killed when it has taken or published something: see latecomer
	"late": func(s *blobstore.Store, words []string) error {
		if words[1] == "published" {
			return s.Put(background, backend, "late", payload("v", 100*kib), time.Second)
		}
		if len(words) > 2 { // KEY: what is wrong with it is seen first
			_, _, _ = s.Get(background, backend, words[2])
		}
		return s.Prune(background, 0)
	},
	// die KEY: is killed inside the driver
	"die": func(s *blobstore.Store, words []string) error {
		b, miss, err := s.Get(background, backend, words[0])
		if err != nil || !miss.None() {
			return fmt.Errorf("%v %v", miss, err)
		}
		if _, miss, err := s.Enter(background, backend, b); err != nil || !miss.None() {
			return fmt.Errorf("%v %v", miss, err)
		}
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	},
}
