package capi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// R3: each sentinel has a status of its own, and a name.
func TestEachSentinelHasAStatus(t *testing.T) {
	seen := make(map[Status]error)
	for _, err := range []error{fault.ErrInvalid, fault.ErrClosed, fault.ErrCycle, fault.ErrGoexit, fault.ErrAbandoned, fault.ErrSize,
		fault.ErrUnsupported, fault.ErrRefused, fault.ErrTooLarge, fault.ErrOverloaded, fault.ErrDeviceLost, fault.ErrUnavailable,
		fault.ErrIO, fault.ErrNotFound, &fault.PanicError{Value: 1}, context.DeadlineExceeded, context.Canceled, errShort, errors.New("other"), nil} {
		got := StatusOf(err)
		if err != nil && StatusOf(&fault.Error{Err: fmt.Errorf("why: %w", err)}) != got {
			t.Errorf("%v has another status where it is wrapped", err)
		}
		if other, twice := seen[got]; twice || got > failed {
			t.Errorf("%v has the status %d, which %v has", err, got, other)
		}
		seen[got] = err
	}
	if len(seen) != int(failed)+1 {
		t.Errorf("%d statuses are used, want %d", len(seen), failed+1)
	}
}

// F3: a panic becomes a status and goes no further.
func TestPanicIsAStatus(t *testing.T) {
	if err := Call(func() error { panic("a bug") }); StatusOf(err) != 15 {
		t.Errorf("a panic is %v", err)
	}
}

// F3: the text of a panic has its stack, behind what went wrong.
func TestTextOfAPanic(t *testing.T) {
	err := fmt.Errorf("build: %w", Call(func() error { panic("a bug") }))
	if text := Text(err); !strings.HasPrefix(text, err.Error()+"\n") || !strings.Contains(text, "status_test.go") {
		t.Errorf("it says %q", text)
	}
	if plain := errors.New("plain"); Text(plain) != "plain" {
		t.Errorf("another error says %q", Text(plain))
	}
}

// B4: a text is cut between two characters, and a zero byte in it does not end it.
func TestCut(t *testing.T) {
	for text, want := range map[string]string{"": "", "abcd": "abcd", "abcde": "abcd", "abcé": "abc", "a\x00bc": "a bc", "\xffab\xff": "ab", "ééé": "éé"} {
		if got := Cut(text, 4); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// B4: no buffer gives the size, a short one is an error and is left alone.
func TestFill(t *testing.T) {
	for n := range 6 {
		buffer, size := bytes.Repeat([]byte{'-'}, n), 0
		err := Fill("abcd", buffer, &size)
		want := "abcd-"[:max(4, n)]
		if n < 4 {
			want = "----"[:n]
		}
		if size != 4 || errors.Is(err, errShort) != (n < 4) || string(buffer) != want {
			t.Errorf("%d bytes: size %d, %v, %q, want %q", n, size, err, buffer, want)
		}
	}
	size := 0
	if err := Fill("abcd", nil, &size); err != nil || size != 4 {
		t.Errorf("no buffer: size %d, %v", size, err)
	}
}

// G12: a handle that was freed is ErrClosed; one that never was, or of another kind, ErrInvalid.
func TestHandles(t *testing.T) {
	d := &device{}
	h, err := put(0, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []uint64{0, h + 1} {
		if _, err := find[device](wrong); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("handle %d: %v", wrong, err)
		}
	}
	if _, err := find[kernel](h); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a device is a kernel: %v", err)
	}
	k, err := put(h, &kernel{on: d})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := take[device](h); err != nil {
		t.Fatal(err)
	}
	if _, err := find[kernel](k); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("the kernel of a device that was closed: %v", err)
	}
	if _, err := put(h, &kernel{}); !errors.Is(err, fault.ErrClosed) {
		t.Errorf("a kernel on a device that was closed: %v", err)
	}
}
