//go:build linux && (amd64 || arm64)

package nvrtc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kiln-cache/kiln/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// need opens the compiler that `make fetch-nvrtc` brings, or skips.
func need(t testing.TB) *Library {
	t.Helper()
	path, err := filepath.Abs("../../../../.cache/nvrtc/libnvrtc.so.13")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		path = "" // as it is installed
	}
	l, err := Open(path)
	if errors.Is(err, fault.ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// kernel is a program that is another one for each number.
func kernel(number int) Request {
	return Request{Target: "sm_80", Defines: map[string]string{"N": fmt.Sprint(number)},
		Text: `static __device__ float last;
extern "C" __global__ void k(float *a) { a[threadIdx.x] += last + N; last = a[0]; }`}
}

// helpers are ended with the test.
func helpers(t testing.TB, n int) *Helpers {
	h := NewHelpers(need(t).Path, n)
	h.patience = time.Hour // however slow the machine is
	t.Cleanup(h.Close)
	return h
}

// P12: the compiler says which it is; its build is of its file.
func TestAbout(t *testing.T) {
	l := need(t)
	if l.Version == "" || len(l.Build) != 64 || !filepath.IsAbs(l.Path) || !slices.Contains(l.Archs, 80) {
		t.Errorf("%s, %s, %s, %d", l.Version, l.Build, l.Path, l.Archs)
	}
	if again, err := Open(l.Path); again != l {
		t.Errorf("the library was opened twice: %v", err)
	}
}

// E2: a library that is not there, or is another one, is unavailable, with what to install.
func TestAbsent(t *testing.T) {
	for _, path := range []string{"/nowhere/libnvrtc.so.13", "/bin/sh"} {
		if _, err := Open(path); !errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), "KILN_NVRTC") {
			t.Errorf("%s: %v, want ErrUnavailable with what to install", path, err)
		}
	}
	if _, err := load("libc.so.6"); err == nil {
		t.Error("libc was taken for the compiler")
	}
}

// K6: the same request gives the same bytes, in this process and in any other: names that
// only one text may use have neither the number of a process nor the time in them.
func TestSameBytes(t *testing.T) {
	l := need(t)
	unnamed := Request{Target: "sm_80", Text: "namespace { struct S { int a; }; }\ntemplate<class T> __global__ void q(T *a) { a->a = 1; }\ntemplate __global__ void q<S>(S *);"}
	for _, r := range []Request{kernel(1), unnamed} {
		want, err := l.Compile(r)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			h := helpers(t, 1)
			got, err := h.Compile(bg, r)
			if err != nil || !bytes.Equal(got.Cubin, want.Cubin) || !bytes.Equal(got.PTX, want.PTX) {
				t.Errorf("%v, or other bytes", err)
			}
			h.Close()
		}
	}
	want, err := l.Compile(kernel(1))
	if err != nil {
		t.Fatal(err)
	}
	if other, err := l.Compile(kernel(2)); err != nil || bytes.Equal(other.Cubin, want.Cubin) {
		t.Errorf("%v, or another macro gave the same bytes", err)
	}
	if !bytes.HasPrefix(want.Cubin, []byte("\x7fELF")) || !bytes.Contains(want.PTX, []byte(".target sm_80")) || want.PTX[len(want.PTX)-1] != 0 {
		t.Error("no cubin, or no PTX with a zero at its end")
	}
	r := kernel(1)
	r.Target = "compute_80"
	if out, err := l.Compile(r); err != nil || len(out.Cubin) > 0 || len(out.PTX) == 0 {
		t.Errorf("compute_80: %d bytes of cubin, %d of PTX, %v", len(out.Cubin), len(out.PTX), err)
	}
}

// K6: what a key does not cover is refused by name, and its near misses are not.
func TestUnhashable(t *testing.T) {
	const global = `extern "C" __global__ void k(float *a) { *a = 0; }` + "\n"
	refused := map[string]Request{
		"a date":              {Text: `const char *d = __DATE__;`},
		"a date on two lines": {Text: "const char *d = __DA\\\nTE__;"},
		"spaces at the end":   {Text: "const char *d = __DA\\ \t\nTE__;"},
		"or none":             {Text: "const char *d = x\\ \n__DATE__;"},
		"a date of parts":     {Text: "#define C(a, b) a ## b\nconst char *d = C(__DA, TE__);"},
		"in two texts":        {Text: "#include \"a\"\nconst char *d = C(__DA, TE__);", Includes: map[string]string{"a": "#define C(a, b) a ## b"}},
		"a define":            {Defines: map[string]string{"D": "__TIME__"}},
		"a header":            {Text: "#include <math.h>"},
		"a file":              {Text: `#include "/etc/hostname"`},
		"a name by a macro":   {Text: "#define F \"/etc/hostname\"\n#include F"},
		"behind a comment":    {Text: "#/* \n */ include /**/ \"/etc/hostname\""},
		"another spelling":    {Text: "%: include \"/etc/hostname\""},
		"on two lines":        {Text: "#inc\\\r\nlude \"/etc/hostname\""},
		"within an include":   {Text: `#include "a"`, Includes: map[string]string{"a": `#include "b"`}},
		"is it there":         {Text: "#if __has_include(\"/etc/hostname\")\n#endif"},
		"a vertical tab":      {Text: "#\vinclude \"/etc/hostname\"\n"},
		"a return":            {Text: "#\rinclude \"/etc/hostname\"\n"},
		"a trigraph":          {Text: "const char *d = __DA??/\nTE__;"},
		"a zero":              {Text: "\x00"},
		"a folder":            {Options: []string{"-I/usr/include"}},
		"a forced include":    {Options: []string{"-include=/etc/hostname"}},
		"line numbers":        {Options: []string{"-lineinfo"}},
		"two in one":          {Options: []string{"-w -I/usr/include"}},
	}
	for what, r := range refused {
		r.Target, r.Text = "sm_80", global+r.Text
		err := r.Check()
		if reason, _ := fault.ReasonOf(err); !errors.Is(err, fault.ErrInvalid) || reason != fault.KeyRefused {
			t.Errorf("%s: %v, want ErrInvalid with the reason key_refused", what, err)
		}
	}
	for what, r := range map[string]Request{
		"no target": {}, "another target": {Target: "sm_80 -G"}, "a macro of two lines": {Target: "sm_80", Defines: map[string]string{"A": "1\n#"}},
		"no macro": {Target: "sm_80", Defines: map[string]string{"A B": "1"}}, "a comment": {Target: "sm_80", Defines: map[string]string{"A": "/*"}},
		"brackets": {Target: "sm_80", Text: strings.Repeat("(", 501)}, "an include's name": {Target: "sm_80", Includes: map[string]string{"a\"b": ""}},
	} {
		if err := r.Check(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	l := need(t)
	taken := Request{Target: "sm_80", Options: []string{"-std=c++20", "--use_fast_math", "-maxrregcount=64"},
		Defines:  map[string]string{"X(a)": "a + 1", "EMPTY": ""},
		Includes: map[string]string{"a/b.h": "#pragma once\n#include \"c.h\"\n", "c.h": "#define C 2\n#define J(a, b) a ## b\n"},
		Text: `#include "a/b.h"
#include <c.h>
// include what one likes: #included is no directive of a file
static __device__ int J(on, ce) = 1;
extern "C" __global__ void k(int *a) { asm("mov.u32 %0, %%tid.x;" : "=r"(*a)); *a += X(C) + once + (int)'('; }`}
	if _, err := l.Compile(taken); err != nil {
		t.Error(err)
	}
}

// K6: lines go on behind a backslash as the two kinds of compilers have it.
func TestJoined(t *testing.T) {
	kinds := []*regexp.Regexp{regexp.MustCompile(`\\\r?\n`), regexp.MustCompile(`\\\s*?\n`)}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var b strings.Builder
		for range rnd.IntN(12) {
			b.WriteByte("\\\\\\\n\n\r \t\fa"[rnd.IntN(10)])
		}
		text := b.String()
		lines := "\n" + joined(text) + "\n"
		for _, kind := range append(kinds, nil) {
			want := text
			if kind != nil {
				want = kind.ReplaceAllString(text, "")
			}
			if !strings.Contains(lines, "\n"+want+"\n") {
				t.Fatalf("%q is joined as %q, without %q", text, lines, want)
			}
		}
	}
}

// F4: a check, which no context ends, takes what the texts are long, however many they are.
func TestManyIncludes(t *testing.T) {
	took := func(n int) uint64 {
		r := Request{Target: "sm_80", Includes: make(map[string]string)}
		for i := range n {
			r.Includes[fmt.Sprint(i, ".h")] = strings.Repeat("// text\n", 128)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, many := took(100), took(3200); many > 64*few {
		t.Errorf("100 includes take %d bytes, 32 times as many %d", few, many)
	}
}

// E3: what does not compile is ErrInvalid with the compiler's log, which names the line of
// the text or of an include; a target that it does not know is ErrUnsupported.
func TestWhatDoesNotCompile(t *testing.T) {
	need(t)
	h := helpers(t, 1)
	for what, c := range map[string]struct {
		r    Request
		kind error
		want []string
	}{
		"a name":    {Request{Target: "sm_80", Text: "\n__device__ int f() { return absent; }", Defines: map[string]string{"A": "1"}}, fault.ErrInvalid, []string{"kernel.cu(2)", "absent"}},
		"include":   {Request{Target: "sm_80", Text: `#include "a.h"`, Includes: map[string]string{"a.h": "\n\n__device__ int f() { return absent; }"}}, fault.ErrInvalid, []string{"a.h(3)", "absent"}},
		"much":      {Request{Target: "sm_80", Text: `extern "C" __global__ void k(int *a) { __shared__ int s[1 << 20]; s[*a] = 1; *a = s[1]; }`}, fault.ErrInvalid, []string{"shared"}},
		"target":    {Request{Target: "sm_20", Text: "\n"}, fault.ErrUnsupported, []string{"sm_20"}},
		"unhashed":  {Request{Target: "sm_80", Text: "#include <math.h>"}, fault.ErrInvalid, []string{"key_refused", "math.h"}},
		"a warning": {Request{Target: "sm_80", Text: "__device__ int f() { int unused; return 1; }"}, nil, nil},
	} {
		_, err := h.Compile(bg, c.r)
		if !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", what, err, c.kind)
			continue
		}
		for _, part := range c.want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v; want %q in it", what, err, part)
			}
		}
	}
	if h.mu.started != 1 {
		t.Errorf("%d processes for that, want 1", h.mu.started)
	}
}

// E3: a compiler without memory for a text may blame it, in a log that has nothing of the text:
// then the error says so, and no other does.
func TestLogOfNoMemory(t *testing.T) {
	l := need(t)
	for log, short := range map[string]bool{
		"": true, "Loop in catastrophic error processing.\n2 catastrophic errors detected in the compilation of \"/kiln/kernel.cu\".": true,
		"/kiln/kernel.cu(1): error: identifier \"a\" is undefined": false, "/kiln/kernel.cu(1): catastrophic error: out of memory": false,
		"ptxas application ptx input, line 24; fatal   : Parsing error near '#': syntax error": false,
		"/kiln/kernel.cu(1): error: " + strings.Repeat("a", 1<<14):                             false,
	} {
		if err := l.failed(6, log); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "no memory") != short || len(err.Error()) > 1<<14 {
			t.Errorf("log %.100q: %.200v; of no memory: %t", log, err, short)
		}
	}
}

// A helper that is killed, or stopped, is replaced, and the request is served.
func TestHelperIsReplaced(t *testing.T) {
	need(t)
	h := helpers(t, 1)
	for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		if _, err := h.Compile(bg, kernel(1)); err != nil {
			t.Fatal(err)
		}
		p := h.mu.idle[0]
		if err := p.Cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		p.patience = time.Millisecond // where it is stopped
		if out, err := h.Compile(bg, kernel(2)); err != nil || len(out.Cubin) == 0 {
			t.Errorf("after %v: %v", signal, err)
		}
		if h.mu.started != i+2 {
			t.Errorf("after %v: %d processes, want another one", signal, h.mu.started)
		}
	}
}

// long is a text whose compile takes longer than any test: its front end cannot be stopped.
func long() Request {
	var b strings.Builder
	b.WriteString("template<int A, int B> struct F { static const int v = (F<A - 1, B>::v + F<A - 1, B + (1 << A % 30)>::v) & 1023; };\ntemplate<int B> struct F<0, B> { static const int v = B; };\n")
	b.WriteString("__device__ int f() { return F<29, 0>::v; }\n")
	return Request{Target: "sm_80", Text: b.String()}
}

// F4: a compile ends with its context, however the compiler hangs, and the next one is served.
func TestHungCompile(t *testing.T) {
	need(t)
	h := helpers(t, 1)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan error, 1)
	go func() {
		_, err := h.Compile(ctx, long())
		done <- err
	}()
	waiting, leave := context.WithCancel(bg)
	leave()
	for len(h.slots) == 0 {
		runtime.Gosched() // until the process is taken
	}
	if _, err := h.Compile(waiting, kernel(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("in the queue: %v", err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a hung compile: %v, want the context's error", err)
	}
	if _, err := h.Compile(bg, kernel(1)); err != nil {
		t.Error(err)
	}
}

// A text that overflows the compiler's stack ends a helper, and then another: it is
// refused, and this process lives.
func TestTextThatKills(t *testing.T) {
	need(t)
	h := helpers(t, 1)
	r := Request{Target: "sm_80", Text: "__device__ int f(int a) { return " + strings.Repeat("a ? a : ", 20000) + "a; }"}
	if _, err := h.Compile(bg, r); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "twice") ||
		!strings.Contains(err.Error(), fmt.Sprintf("texts of %d bytes", len(r.Text))) || !strings.Contains(err.Error(), "4 GiB") || !strings.Contains(err.Error(), "into a buffer") {
		t.Errorf("%.300v, want ErrInvalid", err)
	}
	if _, err := h.Compile(bg, kernel(1)); err != nil || h.mu.started != 3 {
		t.Errorf("after that: %v, %d processes", err, h.mu.started)
	}
}

// A compiler that a helper does not find is its error.
func TestHelperWithoutCompiler(t *testing.T) {
	h := NewHelpers("/nowhere/libnvrtc.so.13", 1)
	defer h.Close()
	if _, err := h.Compile(bg, kernel(1)); !errors.Is(err, fault.ErrUnavailable) {
		t.Errorf("%v, want ErrUnavailable", err)
	}
}

// 100 compiles at once of 100 texts keep every helper busy, and there are no more of them.
func TestManyCompiles(t *testing.T) {
	need(t)
	const n = 3
	h := helpers(t, n)
	most := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	seen := make(map[string]int)
	for i := range 100 {
		wg.Go(func() {
			out, err := h.Compile(bg, kernel(i))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[string(out.Cubin)]++
			most = max(most, len(h.slots))
		})
	}
	wg.Wait()
	if len(seen) != 100 || most != n || h.mu.started != n || len(h.mu.idle) != n {
		t.Errorf("%d kinds of code, %d compiles at once, %d processes, %d idle", len(seen), most, h.mu.started, len(h.mu.idle))
	}
}

// BenchmarkCompile is a compile by one warm helper.
func BenchmarkCompile(b *testing.B) {
	h := NewHelpers(need(b).Path, 1)
	defer h.Close()
	for i := 0; b.Loop(); i++ {
		if _, err := h.Compile(bg, kernel(i)); err != nil {
			b.Fatal(err)
		}
	}
}
