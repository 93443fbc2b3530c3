package layout

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"slices"

	"github.com/kiln-cache/kiln/fault"
)

// UUID is one of the identifiers that Vulkan devices and drivers carry.
type UUID = [16]byte

// Identity is the machine and the build that a file belongs to, and, where
// something of these is unknown, the opening of a cache.
type Identity struct {
	Machine
	opening UUID
}

// Machine is the machine and the build. Strings have at most 1024 bytes.
type Machine struct {
	Library    string // version of what emits and stores the SPIR-V; empty = unknown
	Vendor     uint32
	Device     uint32
	API        uint32 // as Vulkan packs versions
	Driver     uint32 // version, packed as the vendor likes
	DriverID   uint32
	DriverName string
	DriverInfo string
	DeviceName string
	UUID       UUID // of the pipeline cache
	DeviceUUID UUID
	DriverUUID UUID

	// Unknown names fields that could not be found out, as in Fields. An identity
	// with such a field fits no file but those of its own opening (see Opened).
	Unknown []string
}

const longest = 1024 // bytes of a string: four times what Vulkan allows

// field is one part of an identity: a *uint32, *UUID or *string.
type field struct {
	name   string
	reason fault.Reason // of a file in which it differs (SPEC V2)
	at     func(*Identity) any
}

// fields in the order of the header; the first that differs speaks.
var fields = [...]field{
	{"library", fault.Outdated, func(i *Identity) any { return &i.Library }},
	{"vendor", fault.DeviceMismatch, func(i *Identity) any { return &i.Vendor }},
	{"device", fault.DeviceMismatch, func(i *Identity) any { return &i.Device }},
	{"api", fault.Outdated, func(i *Identity) any { return &i.API }},
	{"driver", fault.Outdated, func(i *Identity) any { return &i.Driver }},
	{"driver_id", fault.Outdated, func(i *Identity) any { return &i.DriverID }},
	{"driver_name", fault.Outdated, func(i *Identity) any { return &i.DriverName }},
	{"driver_info", fault.Outdated, func(i *Identity) any { return &i.DriverInfo }},
	{"device_name", fault.DeviceMismatch, func(i *Identity) any { return &i.DeviceName }},
	{"uuid", fault.DeviceMismatch, func(i *Identity) any { return &i.UUID }},
	{"device_uuid", fault.DeviceMismatch, func(i *Identity) any { return &i.DeviceUUID }},
	{"driver_uuid", fault.Outdated, func(i *Identity) any { return &i.DriverUUID }},
}

// Fields are the names of an identity's fields, as reasons give them.
func Fields() []string {
	var names []string
	for _, f := range fields {
		names = append(names, f.name)
	}
	return names
}

// Validate is a fault.ErrInvalid for a string that is too long or an Unknown
// that names no field.
func (i *Identity) Validate() error {
	const op = "pipelinefile: identity"
	for _, f := range fields {
		if s, ok := f.at(i).(*string); ok && len(*s) > longest {
			return fault.Invalidf(op, "%s has %d bytes: want at most %d", f.name, len(*s), longest)
		}
	}
	for _, name := range i.Unknown {
		if !slices.Contains(Fields(), name) {
			return fault.Invalidf(op, "no field %q: want one of %q", name, Fields())
		}
	}
	return nil
}

// Opened is the identity for one opening of a cache: if something in it is
// unknown it equals no other opening's, since the two may be different builds.
func (i Identity) Opened() Identity {
	i.opening = UUID{}
	if i.unknown() != 0 {
		rand.Read(i.opening[:])
	}
	return i
}

func (i *Identity) unknown() (mask uint32) {
	for at, f := range fields {
		if slices.Contains(i.Unknown, f.name) || f.name == "library" && i.Library == "" {
			mask |= 1 << at
		}
	}
	return mask
}

// Misfit is the first field in which a file's identity differs from this one,
// or no miss at all.
func (i *Identity) Misfit(file *Identity) Miss {
	doubt := i.unknown() | file.unknown()
	for at, f := range fields {
		strange := doubt&(1<<at) != 0 && i.opening != file.opening
		if strange || !equal(f.at(i), f.at(file)) {
			return Miss{f.reason, f.name}
		}
	}
	return Miss{}
}

func equal(a, b any) bool {
	switch a := a.(type) {
	case *uint32:
		return *a == *b.(*uint32)
	case *UUID:
		return *a == *b.(*UUID)
	}
	return *a.(*string) == *b.(*string)
}

// appendTo appends unknown, opening and the fields.
func (i *Identity) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, i.unknown())
	dst = append(dst, i.opening[:]...)
	for _, f := range fields {
		switch p := f.at(i).(type) {
		case *uint32:
			dst = binary.LittleEndian.AppendUint32(dst, *p)
		case *UUID:
			dst = append(dst, p[:]...)
		case *string:
			dst = binary.LittleEndian.AppendUint16(dst, uint16(len(*p)))
			dst = append(dst, *p...)
		}
	}
	return dst
}

// parseIdentity reads what appendTo wrote; false unless b is just that.
func parseIdentity(b []byte) (Identity, bool) {
	var id Identity
	whole := b
	take := func(n int) []byte {
		if n > len(b) {
			b = nil
			return make([]byte, n) // the comparison below fails
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	mask := binary.LittleEndian.Uint32(take(4))
	copy(id.opening[:], take(len(id.opening)))
	for at, f := range fields {
		switch p := f.at(&id).(type) {
		case *uint32:
			*p = binary.LittleEndian.Uint32(take(4))
		case *UUID:
			copy(p[:], take(len(p)))
		case *string:
			*p = string(take(int(binary.LittleEndian.Uint16(take(2)))))
		}
		if mask&(1<<at) != 0 {
			id.Unknown = append(id.Unknown, f.name)
		}
	}
	return id, bytes.Equal(id.appendTo(nil), whole) && id.Validate() == nil
}
