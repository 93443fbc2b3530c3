package frame

import (
	"slices"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/internal/canon"
)

// Identity is the build that produced a blob, or that wants to load it (SPEC P3, K7).
type Identity struct {
	Library  string
	Build    string
	Compiler string
	Driver   string
	Device   string
	ISA      []string // instruction sets that are present; an entry has Requires instead
}

// factors are the fields in the order in which they are compared; the first that
// differs is reported (SPEC P4).
var factors = [...]string{"library", "build", "compiler", "driver", "device"}

func (id *Identity) fields() [len(factors)]*string {
	return [...]*string{&id.Library, &id.Build, &id.Compiler, &id.Driver, &id.Device}
}

func (id Identity) texts() (texts [len(factors)]string) {
	for i, field := range id.fields() {
		texts[i] = *field
	}
	return texts
}

// Append appends a backend's name and the identity to the encoding of a key: seven values,
// with tags from first on. The digests of such keys are kept.
func (id Identity) Append(dst []byte, first canon.Tag, backend string) []byte {
	dst = canon.AppendString(dst, first, backend)
	for i, text := range id.texts() {
		dst = canon.AppendString(dst, first+1+canon.Tag(i), text)
	}
	dst = canon.AppendGroup(dst, first+6, len(id.ISA))
	for _, feature := range id.ISA {
		dst = canon.AppendString(dst, 1, feature)
	}
	return dst
}

// Known reports whether blobs of this identity may be stored and loaded (SPEC P12).
func (id Identity) Known() bool { return id.Library != "" && id.Build != "" }

// Misfits lists the factors that keep e from being used by present, in the
// order library, build, compiler, driver, device, isa. Empty = it fits.
func (e *Entry) Misfits(present Identity) []string {
	var wrong []string
	own, other := e.Identity.texts(), present.texts()
	for i, factor := range factors {
		if own[i] != other[i] {
			wrong = append(wrong, factor)
		}
	}
	for _, need := range e.Requires {
		if !slices.Contains(present.ISA, need) {
			return append(wrong, "isa")
		}
	}
	return wrong
}

// Misfit gives the reason for a factor of Misfits (SPEC P4).
func Misfit(factor string) Flaw {
	switch factor {
	case "device":
		return Flaw{fault.DeviceMismatch, factor}
	case "isa":
		return Flaw{fault.Incompatible, factor}
	}
	return Flaw{fault.Outdated, factor}
}
