package kernels_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/cpu/internal/kernels"
	"github.com/kiln-cache/kiln/gpuexec/ops"
)

// blobOf compiles spec and takes its blob, or skips where there is no compiler.
func blobOf(t testing.TB, e *kernels.Engine, spec kernels.Spec) []byte {
	t.Helper()
	p, err := e.Compile(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	blob, err := p.Blob()
	if errors.Is(err, fault.ErrUnsupported) {
		t.Skip("this platform has no machine code compiler")
	}
	if err != nil {
		t.Fatal(err)
	}
	return blob
}

// reseal puts the right digest under a blob that was changed.
func reseal(blob []byte) []byte {
	body := blob[:len(blob)-sha256.Size]
	sum := sha256.Sum256(body)
	return append(slices.Clone(body), sum[:]...)
}

// TestBlobRoundTrip: every kind runs from its blob in an engine that never
// compiled it, with the same bits, and its blob is byte-equal (B2).
func TestBlobRoundTrip(t *testing.T) {
	first, second := openEngine(t), openEngine(t)
	for n, spec := range specs(5)[:17*3] {
		blob := blobOf(t, first, spec)
		l := newLaunch(t, first, spec, uint64(n))
		l.run(t)
		want := l.output()

		p, err := second.Load(t.Context(), blob)
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec() != spec {
			t.Fatalf("loaded %s, want %s", p.Spec(), spec)
		}
		again, err := p.Blob()
		if err != nil || !slices.Equal(again, blob) {
			t.Fatalf("blob of a loaded %s differs (%v)", spec, err)
		}
		m := newLaunch(t, second, spec, uint64(n)) // finds the loaded code
		m.run(t)
		if !slices.Equal(m.output(), want) {
			t.Fatalf("%s from its blob gives other bits", spec)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// K7: code for fewer instruction sets than there are is taken, and stays what it is.
func TestLoadFewerInstructionSets(t *testing.T) {
	spec := specOf(ops.Add, 1, 4, 1)
	blob := blobOf(t, openEngine(t), spec)
	identity := 12 + 2
	features := blob[identity+int(binary.LittleEndian.Uint16(blob[12:])):]
	features = features[2+int(binary.LittleEndian.Uint16(features))+sha256.Size:][:8]
	if binary.LittleEndian.Uint64(features) == 0 {
		t.Skip("the compiler uses no instruction set that it could do without")
	}
	clear(features)
	blob = reseal(blob)
	e := openEngine(t)
	p, err := e.Load(t.Context(), blob)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if needs := p.Requires(); needs == nil || len(needs) > 0 {
		t.Errorf("it needs %v, want nothing", needs)
	}
	if again, err := p.Blob(); err != nil || !slices.Equal(again, blob) {
		t.Errorf("its blob changed: %v", err)
	}
}

// TestLoadDoesNotCompile: what a loaded blob says is what runs, not what the
// compiler would make.
func TestLoadDoesNotCompile(t *testing.T) {
	spec := specOf(ops.Add, 1, 4, 1)
	blob := blobOf(t, openEngine(t), spec)
	// The one addition of the kernel's machine code becomes a subtraction.
	addps, subps := []byte{0x0f, 0x58}, byte(0x5c)
	at := indexOnce(blob, addps)
	if at < 0 {
		t.Skip("the addition is not where this test looks for it")
	}
	blob[at+1] = subps
	resealCode(blob)
	e := openEngine(t)
	p, err := e.Load(t.Context(), reseal(blob))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	l := newLaunch(t, e, spec, 1)
	for i := range 4 {
		l.set(0, i, 5)
		l.set(1, i, 3)
	}
	l.run(t)
	if got := l.float(2, 0); got != 2 {
		t.Fatalf("5 and 3 give %v: the loaded code did not run", got)
	}
}

// resealCode puts the compiler's own checksum, CRC-32C of the machine code, right.
func resealCode(blob []byte) {
	code := blob[bytes.Index(blob, []byte("WAZEVO")):]
	at := 6 + 1 + int(code[6])
	at += 4 + 8*int(binary.LittleEndian.Uint32(code[at:]))
	n := int(binary.LittleEndian.Uint64(code[at:]))
	native := code[at+8 : at+8+n]
	sum := crc32.Checksum(native, crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(code[at+8+n:], sum)
}

// indexOnce is where sep is in b, -1 if it is there never or more than once.
func indexOnce(b, sep []byte) int {
	found := -1
	for i := range len(b) - len(sep) {
		if slices.Equal(b[i:i+len(sep)], sep) {
			if found >= 0 {
				return -1
			}
			found = i
		}
	}
	return found
}

// TestDamagedBlobs: every flipped byte and every length is rejected with a
// reason, and nothing of it runs (B3, R1).
func TestDamagedBlobs(t *testing.T) {
	blob := blobOf(t, openEngine(t), specOf(ops.Add, 2, 4, 1))
	e := openEngine(t)
	load := func(b []byte) fault.Reason {
		p, err := e.Load(t.Context(), b)
		if err == nil {
			p.Close()
			return ""
		}
		var f *fault.Error
		if !errors.As(err, &f) || !errors.Is(err, fault.ErrRefused) {
			t.Fatalf("not a typed rejection: %v", err)
		}
		return f.Reason
	}
	for i := range blob {
		b := slices.Clone(blob)
		b[i] ^= 1 << (i % 8)
		want := []fault.Reason{fault.Checksum}
		switch {
		case i < 8:
			want = []fault.Reason{fault.Format}
		case i < 12:
			want = []fault.Reason{fault.Truncated, fault.Trailing}
		}
		if got := load(b); !slices.Contains(want, got) {
			t.Fatalf("byte %d flipped: reason %q, want %q", i, got, want)
		}
	}
	for n := 1; n < len(blob); n++ {
		if got := load(blob[:n]); got != fault.Truncated {
			t.Fatalf("%d bytes: reason %q", n, got)
		}
	}
	if got := load(append(slices.Clone(blob), 0)); got != fault.Trailing {
		t.Errorf("one byte more: reason %q", got)
	}
	if got := load(make([]byte, 17<<20)); got != fault.Format {
		t.Errorf("zeros: reason %q", got)
	}
	if got := load(append(slices.Clone(blob), make([]byte, 17<<20)...)); got != fault.TooLarge {
		t.Errorf("17 MiB: reason %q", got)
	}
	for _, empty := range [][]byte{nil, {}} {
		if _, err := e.Load(t.Context(), empty); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("an empty blob: %v", err) // B2
		}
	}
	if got := load(blob); got != "" {
		t.Errorf("the sound blob: reason %q", got)
	}
}

// TestForeignBlobs: sound blobs of another build, processor or source are told
// apart, as is machine code that the compiler itself refuses.
func TestForeignBlobs(t *testing.T) {
	blob := blobOf(t, openEngine(t), specOf(ops.Add, 2, 4, 1))
	identity := 12 + 2
	spec := identity + int(binary.LittleEndian.Uint16(blob[12:])) + 2
	module := spec + int(binary.LittleEndian.Uint16(blob[spec-2:]))
	isa, code := module+32, module+32+8+4
	for _, c := range []struct {
		name string
		at   int
		want fault.Reason
	}{
		{"identity", identity, fault.Outdated},
		{"identity length", 12, fault.Format},
		{"spec", spec + 1, fault.Format},
		{"module", module, fault.SourceChanged},
		{"isa", isa, fault.Incompatible},
		{"code length", isa + 8, fault.Format},
		{"code magic", code, fault.DriverRefused},
		{"code version", code + 7, fault.DriverRefused},
		{"machine code", len(blob) - 60, fault.DriverRefused},
	} {
		b := slices.Clone(blob)
		b[c.at] ^= 0x10
		e := openEngine(t)
		p, err := e.Load(t.Context(), reseal(b))
		var f *fault.Error
		if !errors.As(err, &f) || f.Reason != c.want {
			t.Errorf("%s changed: %v, want reason %q", c.name, err, c.want)
		}
		if p != nil {
			t.Errorf("%s changed: a program came back", c.name)
		}
		if p, err := e.Load(t.Context(), blob); err != nil { // the engine is unharmed
			t.Errorf("after %s: %v", c.name, err)
		} else {
			p.Close()
		}
	}
}

// TestOthersIgnoreBadLoad: who compiles, or loads a good blob, does not suffer from
// a bad blob of the same kernel that somebody loads at the same time (B3).
func TestOthersIgnoreBadLoad(t *testing.T) {
	spec := specOf(ops.Add, 2, 4, 1)
	good := blobOf(t, openEngine(t), spec)
	bad := slices.Clone(good)
	bad[len(bad)-60] ^= 1
	bad = reseal(bad)
	e := openEngine(t)
	for range 100 {
		var wg sync.WaitGroup
		start := make(chan struct{})
		begin := func(how func() (*kernels.Program, error), mayFail bool) {
			wg.Go(func() {
				<-start
				p, err := how()
				if err == nil {
					p.Close() // of a bad blob: the sound code was there first
				} else if !mayFail {
					t.Error(err)
				}
			})
		}
		for range 4 {
			begin(func() (*kernels.Program, error) { return e.Load(t.Context(), bad) }, true)
			begin(func() (*kernels.Program, error) { return e.Load(t.Context(), good) }, false)
			begin(func() (*kernels.Program, error) { return e.Compile(t.Context(), spec) }, false)
		}
		close(start)
		wg.Wait()
	}
}
