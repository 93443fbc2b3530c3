package layout

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

func sampleFile(t testing.TB) (*File, []byte) {
	t.Helper()
	f := &File{
		Identity: Identity{Machine: Machine{Library: "kiln-1", Vendor: 0x10de, Device: 7, DriverName: "driver", DeviceName: "card", UUID: UUID{1}}},
		Entries: []Entry{
			{Key{"a", 0, [32]byte{1}}, []uint32{0x07230203, 1}},
			{Key{"a", 1, [32]byte{1}}, []uint32{0x07230203}},
			{Key{"b", 0, [32]byte{2}}, []uint32{2, 3, 4}},
		},
	}
	f.Blob = append(AppendBlobHeader(nil, &f.Identity), "driver data"...)
	file, err := Encode(f)
	if err != nil {
		t.Fatal(err)
	}
	return f, file
}

// reading gives a Reader that fails the test when it is asked for more than
// there is: nothing is allocated from a length that was not checked.
func reading(t *testing.T, file []byte) Reader {
	asked := int64(0)
	return func(offset, n int64) ([]byte, error) {
		if offset < 0 || n < 0 || n > int64(len(file)) || offset > int64(len(file))-n {
			t.Fatalf("%d bytes from %d asked of %d", n, offset, len(file))
		}
		if asked += n; asked > int64(len(file))+Preamble {
			t.Fatalf("%d bytes asked in all of %d", asked, len(file))
		}
		return Bytes(file)(offset, n)
	}
}

// check holds what must hold for any bytes: no panic, a reason of the closed set
// or a file that encodes to these very bytes.
func check(t *testing.T, file []byte, present *Identity) {
	f, miss, err := Decode(int64(len(file)), reading(t, file), present)
	if err != nil || (f == nil) == (miss == Miss{}) {
		t.Fatalf("%v, %v, %v", f, miss, err)
	}
	if f == nil {
		switch miss.Reason {
		case fault.Format, fault.Truncated, fault.Trailing, fault.Checksum:
		case fault.Outdated, fault.DeviceMismatch, fault.DriverHeader:
			if present == nil || miss.Field == "" {
				t.Fatalf("%v of nobody's identity", miss)
			}
		default:
			t.Fatalf("%v is no reason of a file", miss)
		}
		return
	}
	again, err := Encode(f)
	if err != nil || !bytes.Equal(again, file) {
		t.Fatalf("the file encodes to another one: %v", err)
	}
}

// SPEC V1, V2: any bytes at all.
func FuzzDecode(f *testing.F) {
	sample, file := sampleFile(f)
	f.Add(file)
	f.Add([]byte{})
	f.Add(file[:Preamble])
	f.Add(append(bytes.Clone(file), 0))
	empty, err := Encode(&File{Identity: Identity{Machine: Machine{Library: "x"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(empty)
	f.Fuzz(func(t *testing.T, file []byte) {
		check(t, file, nil)
		check(t, file, &sample.Identity)
	})
}

// SPEC V1, V2: any header, section and blob with every digest right, so that the
// parser behind the digests meets them.
func FuzzSealed(f *testing.F) {
	sample, file := sampleFile(f)
	header := int(binary.LittleEndian.Uint32(file[headerAt:]))
	blob := len(file) - len(sample.Blob)
	f.Add(uint32(3), file[identityAt:header], file[header:blob], file[blob:])
	f.Add(uint32(0), file[identityAt:header], []byte{}, []byte{})
	f.Add(uint32(math.MaxUint32), file[identityAt:header], file[header:blob], file[blob:])
	f.Add(uint32(1), file[identityAt:header-1], file[header:header+entryHead], file[blob:])
	f.Fuzz(func(t *testing.T, count uint32, identity, section, blob []byte) {
		out := make([]byte, identityAt)
		copy(out, magic)
		binary.LittleEndian.PutUint32(out[versionAt:], Version)
		binary.LittleEndian.PutUint32(out[orderAt:], byteOrder)
		binary.LittleEndian.PutUint32(out[countAt:], count)
		out = append(out, identity...)
		binary.LittleEndian.PutUint32(out[headerAt:], uint32(len(out)))
		out = append(out, section...)
		out = append(out, blob...)
		seal(out, len(out)-len(blob))
		check(t, out, nil)
		check(t, out, &sample.Identity)
	})
}
