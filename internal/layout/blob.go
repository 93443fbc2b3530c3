package layout

import (
	"encoding/binary"

	"github.com/kiln-cache/kiln/fault"
)

// BlobHeader is the size in bytes of the header that every Vulkan driver puts
// before its pipeline-cache data (VkPipelineCacheHeaderVersionOne).
const BlobHeader = 32

// Where its fields lie.
const (
	blobVersionAt = 4
	blobVendorAt  = 8
	blobDeviceAt  = 12
	blobUUIDAt    = 16
)

// AppendBlobHeader appends the standard header of a device's pipeline cache.
func AppendBlobHeader(dst []byte, id *Identity) []byte {
	for _, n := range []uint32{BlobHeader, 1, id.Vendor, id.Device} {
		dst = binary.LittleEndian.AppendUint32(dst, n)
	}
	return append(dst, id.UUID[:]...)
}

// CheckBlob reports why a driver of this identity must not see the blob, before
// it does (SPEC V4): drivers are known to accept foreign data and to crash later.
func CheckBlob(blob []byte, id *Identity) Miss {
	bad := func(field string) Miss { return Miss{fault.DriverHeader, field} }
	if len(blob) < BlobHeader {
		return bad("headerlen")
	}
	number := func(at int) uint32 { return binary.LittleEndian.Uint32(blob[at:]) }
	switch {
	case number(0) != BlobHeader: // the only length that version 1 allows
		return bad("headerlen")
	case number(blobVersionAt) != 1:
		return bad("version")
	case number(blobVendorAt) != id.Vendor:
		return bad("vendor")
	case number(blobDeviceAt) != id.Device:
		return bad("device")
	case UUID(blob[blobUUIDAt:BlobHeader]) != id.UUID:
		return bad("uuid")
	}
	return Miss{}
}
