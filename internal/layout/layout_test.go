package layout

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// SPEC V2: what was written is read again, and one content has one file.
func TestRoundTrip(t *testing.T) {
	f, file := sampleFile(t)
	if int64(len(file)) != f.Size() {
		t.Errorf("%d bytes, announced %d", len(file), f.Size())
	}
	got, miss, err := Decode(int64(len(file)), reading(t, file), &f.Identity)
	if err != nil || miss != (Miss{}) || !reflect.DeepEqual(got, f) {
		t.Errorf("%v %v\n%+v\n%+v", miss, err, got, f)
	}
	again, err := Encode(got)
	if err != nil || !bytes.Equal(again, file) {
		t.Error("another file of the same content", err)
	}
	if size, miss := Announced(file[:Preamble]); miss != (Miss{}) || size != uint64(len(file)) {
		t.Errorf("announced %d, %v", size, miss)
	}
}

// SPEC V2: every single flipped bit and every cut, with the reasons of the
// preamble's fields.
func TestEveryBit(t *testing.T) {
	_, file := sampleFile(t)
	for i := range file {
		for bit := range 8 {
			file[i] ^= 1 << bit
			got, miss, err := Decode(int64(len(file)), reading(t, file), nil)
			if got != nil || miss == (Miss{}) || err != nil {
				t.Errorf("byte %d bit %d: taken", i, bit)
			}
			if i < totalAt && miss.Reason != fault.Format {
				t.Errorf("byte %d bit %d of magic, version and byte order: %v", i, bit, miss)
			}
			file[i] ^= 1 << bit
		}
	}
	for n := range file {
		if _, miss, _ := Decode(int64(n), reading(t, file[:n]), nil); miss.Reason != fault.Truncated {
			t.Errorf("cut to %d: %v", n, miss)
		}
	}
}

// The first bytes of a file of another kind say so however short it is, and
// trouble of reading is not the file's.
func TestReaders(t *testing.T) {
	f, file := sampleFile(t)
	if _, miss, _ := Decode(3, Bytes([]byte("abc")), nil); miss.Reason != fault.Format {
		t.Error(miss)
	}
	for fails := range 4 {
		calls := 0
		_, miss, err := Decode(int64(len(file)), func(offset, n int64) ([]byte, error) {
			if calls++; calls > fails {
				return nil, io.ErrClosedPipe
			}
			return Bytes(file)(offset, n)
		}, &f.Identity)
		if miss.Reason != fault.Degraded || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("call %d fails: %v %v", fails+1, miss, err)
		}
		calls = 0
		_, miss, err = Decode(int64(len(file)), func(offset, n int64) ([]byte, error) {
			if calls++; calls > fails {
				n--
			}
			return Bytes(file)(offset, n)
		}, &f.Identity)
		if miss.Reason != fault.Truncated || err != nil {
			t.Errorf("call %d comes short: %v %v", fails+1, miss, err)
		}
	}
}

// SPEC V2: a preamble that has changed when it is read with the rest of the header
// is not believed.
func TestPreambleChanges(t *testing.T) {
	_, file := sampleFile(t)
	other, err := Forge(file, "format", Version+1)
	if err != nil {
		t.Fatal(err)
	}
	looks := 0
	_, miss, err := Decode(int64(len(file)), func(offset, n int64) ([]byte, error) {
		if looks++; looks == 1 {
			return Bytes(file)(offset, n)
		}
		return Bytes(other)(offset, n)
	}, nil)
	if miss.Reason != fault.Checksum || err != nil {
		t.Errorf("%v %v", miss, err)
	}
}

// What cannot be read again is not written.
func TestEncodeRefuses(t *testing.T) {
	word := []uint32{1}
	for name, f := range map[string]*File{
		"no name":      {Entries: []Entry{{Key{}, word}}},
		"no words":     {Entries: []Entry{{Key{Shader: "a"}, nil}}},
		"twice":        {Entries: []Entry{{Key{Shader: "a"}, word}, {Key{Shader: "a"}, word}}},
		"out of order": {Entries: []Entry{{Key{Shader: "b"}, word}, {Key{Shader: "a"}, word}}},
		"long string":  {Identity: Identity{Machine: Machine{DriverInfo: strings.Repeat("x", longest+1)}}},
	} {
		if _, err := Encode(f); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	unsorted := []Entry{{Key{"a", 0, [32]byte{2}}, word}, {Key{"a", 0, [32]byte{1}}, word}, {Key{Shader: "A"}, word}}
	Sort(unsorted)
	if _, err := Encode(&File{Entries: unsorted}); err != nil {
		t.Error(err)
	}
}

// Forge changes what it is told to and nothing else stands in the way.
func TestForge(t *testing.T) {
	_, file := sampleFile(t)
	for _, field := range []string{"format", "entries", "entry.size", "entry.duplicate", "blob.headerlen", "blob.version", "blob.vendor", "blob.device", "blob.uuid"} {
		forged, err := Forge(file, field, 0)
		if err != nil || bytes.Equal(forged, file) {
			t.Errorf("%s: %v", field, err)
			continue
		}
		if _, miss, _ := Decode(int64(len(forged)), reading(t, forged), nil); miss.Reason == fault.Checksum {
			t.Errorf("%s: a digest is wrong", field)
		}
	}
	bare, err := Encode(&File{Identity: Identity{Machine: Machine{Library: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"entry.size", "entry.duplicate", "blob.vendor"} {
		if _, err := Forge(bare, field, 1); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s of a file without: %v", field, err)
		}
	}
	for _, err := range []error{second(Forge(file, "colour", 1)), second(Forge(file[1:], "format", 1)), second(Impersonate(nil, nil))} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// SPEC V2: of several fields that differ the first of the header speaks; what is
// unknown equals only its own opening.
func TestMisfit(t *testing.T) {
	a := Identity{Machine: Machine{Library: "1"}}.Opened()
	b := a
	b.DriverUUID, b.Vendor = UUID{1}, 2
	if got := a.Misfit(&b); got != (Miss{fault.DeviceMismatch, "vendor"}) {
		t.Error(got)
	}
	if again := a.Opened(); a.Misfit(&again) != (Miss{}) {
		t.Error("two openings of one known build differ")
	}
	for _, unknown := range []Identity{{}, {Machine: Machine{Library: "1", Unknown: []string{"library"}}}} {
		x, y := unknown.Opened(), unknown.Opened()
		if x.Misfit(&x) != (Miss{}) || x.Misfit(&y) != (Miss{fault.Outdated, "library"}) || y.Misfit(&a).Field != "library" {
			t.Errorf("%+v", unknown)
		}
	}
	if n := len(Fields()); n != 12 {
		t.Errorf("%d fields", n)
	}
}
