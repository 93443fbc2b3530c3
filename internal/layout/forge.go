package layout

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// Forge gives a copy of a sound file with one field changed and every length
// and digest around it made right again, so that only the check of that field
// can object. For tests of what reads the format. Fields:
//
//	format           the version
//	entries          how many entries the header announces
//	entry.size       bytes of SPIR-V that the first entry announces
//	entry.duplicate  a second copy of the first entry behind it; no value
//	blob.headerlen, blob.version, blob.vendor, blob.device, blob.uuid
//	                 of the driver blob's own header; for uuid its first 8 bytes
func Forge(file []byte, name string, value uint64) ([]byte, error) {
	const op = "pipelinefile: forge"
	f, miss, err := Decode(int64(len(file)), Bytes(file), nil)
	if err != nil || miss != (Miss{}) {
		return nil, fault.Invalidf(op, "the file itself is not sound: %s", miss)
	}
	out := bytes.Clone(file)
	header := int(binary.LittleEndian.Uint32(out[headerAt:]))
	blob := len(out) - len(f.Blob)
	at := map[string]int{"blob.headerlen": 0, "blob.version": blobVersionAt, "blob.vendor": blobVendorAt, "blob.device": blobDeviceAt, "blob.uuid": blobUUIDAt}
	inBlob, isBlob := at[name]
	switch {
	case isBlob && len(f.Blob) < BlobHeader, name == "entry.size" && len(f.Entries) == 0, name == "entry.duplicate" && len(f.Entries) == 0:
		return nil, fault.Invalidf(op, "the file has nothing that %s could change", name)
	case name == "blob.uuid":
		binary.LittleEndian.PutUint64(out[blob+inBlob:], value)
	case isBlob:
		binary.LittleEndian.PutUint32(out[blob+inBlob:], uint32(value))
	case name == "format":
		binary.LittleEndian.PutUint32(out[versionAt:], uint32(value))
	case name == "entries":
		binary.LittleEndian.PutUint32(out[countAt:], uint32(value))
	case name == "entry.size":
		binary.LittleEndian.PutUint32(out[header:], uint32(value))
	case name == "entry.duplicate":
		first := f.Entries[0].appendTo(nil)
		out = slices.Insert(out, header+len(first), first...)
		binary.LittleEndian.PutUint32(out[countAt:], uint32(len(f.Entries)+1))
		blob += len(first)
	default:
		return nil, fault.Invalidf(op, "no field %q", name)
	}
	seal(out, blob)
	return out, nil
}

// Impersonate gives a copy of a sound file with another identity in its header,
// the rest as it was. For tests, as Forge.
func Impersonate(file []byte, change func(*Identity)) ([]byte, error) {
	f, miss, err := Decode(int64(len(file)), Bytes(file), nil)
	if err != nil || miss != (Miss{}) {
		return nil, fault.Invalidf("pipelinefile: forge", "the file itself is not sound: %s", miss)
	}
	change(&f.Identity)
	return Encode(f)
}
