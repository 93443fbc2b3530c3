//go:build unix

package blobstore_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
	"github.com/kiln-cache/kiln/gpuexec/blobstore"
	"github.com/kiln-cache/kiln/internal/vfs"
	"github.com/kiln-cache/kiln/limit"
)

const (
	backend = "test"
	kib     = 1 << 10
	mib     = 1 << 20
	small   = 8 << 10 // what an entry takes at least
)

var (
	background = context.Background()
	childWork  = flag.String("child", "", "run as a child process that does this")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *childWork != "" {
		os.Exit(runChild(strings.Split(*childWork, ",")))
	}
	goleak.VerifyTestMain(m)
}

// rig is the world of one test: a directory, a clock, an identity, faults.
type rig struct {
	t    testing.TB
	root string
	id   gpuexec.Identity
	log  *lines
	mu   struct {
		sync.Mutex
		ahead  time.Duration
		faults map[string]syscall.Errno
		counts map[string]int
	}
}

type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

func defaultIdentity() gpuexec.Identity {
	return gpuexec.Identity{Library: "1.0", Build: "b1", Compiler: "c1", Driver: "d1", Device: "dev", ISA: []string{"avx2", "fma"}}
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t, root: t.TempDir(), id: defaultIdentity(), log: &lines{}}
	r.mu.faults, r.mu.counts = map[string]syscall.Errno{}, map[string]int{}
	return r
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.mu.ahead)
}

func (r *rig) clock(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ahead += d
}

func (r *rig) op(op string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.counts[op]++
	if errno, ok := r.mu.faults[op]; ok {
		return errno
	}
	return nil
}

func (r *rig) fault(op string, errno syscall.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.faults[op] = errno
}

func (r *rig) heal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.mu.faults)
}

// io counts operations since the last call.
func (r *rig) io(op string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.mu.counts[op]
	clear(r.mu.counts)
	return n
}

func (r *rig) path(name string) string { return filepath.Join(r.root, name) }

type option func(*blobstore.Config)

func (r *rig) config(dir string, capacity int64, options ...option) blobstore.Config {
	id := r.id
	cfg := blobstore.Config{
		Dir: r.path(dir), Capacity: limit.Of(capacity), Durability: blobstore.None, Now: r.now,
		Identity: func(string) gpuexec.Identity { return id },
		Logger:   slog.New(slog.NewTextHandler(r.log, nil)),
	}
	blobstore.SetFS(&cfg, func(root string) vfs.FS { return vfs.Watch(vfs.Dir(root), r.op) })
	for _, o := range options {
		o(&cfg)
	}
	return cfg
}

func policy(p blobstore.Policy) option    { return func(c *blobstore.Config) { c.Policy = p } }
func sync_(d blobstore.Durability) option { return func(c *blobstore.Config) { c.Durability = d } }

// on is a store on the machine's files, seen through wrap.
func on(wrap func(vfs.FS) vfs.FS) option {
	return func(c *blobstore.Config) {
		blobstore.SetFS(c, func(root string) vfs.FS { return wrap(vfs.Dir(root)) })
	}
}

func hash(n uint64) option {
	return func(c *blobstore.Config) { c.Hash = func(string) uint64 { return n } }
}

// shop is an open store, asked in words as the conformance scripts do.
type shop struct {
	*blobstore.Store
	r   *rig
	cfg blobstore.Config
}

func (r *rig) open(dir string, capacity int64, options ...option) *shop {
	r.t.Helper()
	s := &shop{r: r, cfg: r.config(dir, capacity, options...)}
	s.reopen()
	r.t.Cleanup(func() { s.shut() })
	return s
}

func (s *shop) shut() {
	s.r.t.Helper()
	if err := s.Store.Close(background); err != nil {
		s.r.t.Errorf("close: %v", err)
	}
}

func (s *shop) reopen() {
	s.r.t.Helper()
	if s.Store != nil {
		s.shut()
	}
	st, err := blobstore.Open(background, s.cfg)
	if err != nil {
		s.r.t.Fatalf("open: %v", err)
	}
	s.Store = st
}

// payload is what the scripts store: v, and padding up to n bytes.
func payload(v string, n int) []byte {
	if n == 0 {
		return []byte(v)
	}
	p := bytes.Repeat([]byte("."), max(n, len(v)+1))
	copy(p, v+"\n")
	return p
}

type putOptions struct {
	bytes    int
	cost     float64
	backend  string
	requires []string
}

func (s *shop) put(key, v string, o ...putOptions) string {
	p := putOptions{cost: 1, backend: backend}
	for _, q := range o {
		p = q
		if p.backend == "" {
			p.backend = backend
		}
	}
	return said(s.Put(background, p.backend, key, payload(v, p.bytes), time.Duration(p.cost*float64(time.Second)), append([]string{}, p.requires...)...)) // known: none
}

func said(err error) string {
	var f *fault.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, fault.ErrInvalid):
		return "error invalid"
	case errors.Is(err, fault.ErrClosed):
		return "error closed"
	case errors.As(err, &f) && f.Reason != "":
		return "refused reason=" + string(f.Reason)
	case errors.Is(err, fault.ErrRefused):
		return "error refused"
	case errors.Is(err, fault.ErrIO):
		return "error io"
	}
	return "error " + err.Error()
}

func (s *shop) get(key string) string { return s.getOf(backend, key) }

func (s *shop) getOf(backend, key string) string {
	b, miss, err := s.Get(background, backend, key)
	switch {
	case err != nil:
		return said(err)
	case miss.Field != "":
		return fmt.Sprintf("miss reason=%s field=%s", miss.Reason, miss.Field)
	case !miss.None():
		return "miss reason=" + string(miss.Reason)
	}
	v, _, _ := strings.Cut(string(b.Payload), "\n")
	return v
}

func (s *shop) usage() blobstore.Usage {
	s.r.t.Helper()
	u, err := s.Usage(background)
	if err != nil {
		s.r.t.Errorf("usage: %v", err)
	}
	return u
}

func (s *shop) audit() string {
	s.r.t.Helper()
	size, text, disk, err := s.Audit(background)
	if err != nil {
		return err.Error()
	}
	if size != disk || text != disk {
		return fmt.Sprintf("size=%d text=%d disk=%d", size, text, disk)
	}
	return "ok"
}

func (s *shop) verify() int {
	s.r.t.Helper()
	bad, err := s.Verify(background, false)
	if err != nil {
		s.r.t.Errorf("verify: %v", err)
	}
	return len(bad)
}

// place is the folder of a key's first slot.
func (s *shop) place(key string, parts ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir, backend, s.Bucket(key), "0"}, parts...)...)
}

func (s *shop) kernel(key string) string { return s.place(key, "kernel.bin") }

func (r *rig) want(what string, got, want any) {
	r.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantOf accepts several answers.
func (r *rig) wantOf(what, got string, want ...string) {
	r.t.Helper()
	for _, w := range want {
		if got == w || strings.HasSuffix(w, "*") && strings.HasPrefix(got, strings.TrimSuffix(w, "*")) {
			return
		}
	}
	r.t.Errorf("%s: got %s, want one of %q", what, got, want)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) read(path string) []byte {
	r.t.Helper()
	text, err := os.ReadFile(path)
	r.must(err)
	return text
}

func (r *rig) write(path string, text []byte) {
	r.t.Helper()
	r.must(os.MkdirAll(filepath.Dir(path), 0o700))
	r.must(os.WriteFile(path, text, 0o600))
}

func (r *rig) flip(path string, at int) {
	text := r.read(path)
	if at < 0 {
		at += len(text)
	}
	text[at] ^= 1
	r.write(path, text)
}

// age makes what lies in folders that old, by the clock of the file system.
func (r *rig) age(by time.Duration, folders ...string) {
	then := time.Now().Add(-by)
	for _, folder := range folders {
		list, _ := os.ReadDir(r.path(folder))
		for _, entry := range list {
			_ = os.Chtimes(filepath.Join(r.path(folder), entry.Name()), then, then) // unless it is gone
		}
	}
}

func (r *rig) exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// eventually polls; work off the caller's path may end a little later.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// words writes values with blanks between them.
func words(values ...any) string { return strings.TrimSuffix(fmt.Sprintln(values...), "\n") }
