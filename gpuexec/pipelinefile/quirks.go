package pipelinefile

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/kiln-cache/kiln/fault"
)

// Effect is what a quirk does.
type Effect string

// The effects. Where several rows match, Off wins.
const (
	Off       Effect = "off"       // no driver cache: none is made, loaded or stored
	Serialise Effect = "serialise" // the driver sees one call at a time
)

// Quirk is one row of the table of known-bad drivers (SPEC V8): it matches a
// driver if all that it names does.
type Quirk struct {
	Vendor   string  `json:"vendor"`              // PCI id, as in 0x5143
	DriverID *uint32 `json:"driver_id,omitempty"` // VkDriverId; nil = any
	APIBelow string  `json:"api_below,omitempty"` // as in 1.0.66; empty = any
	Effect   Effect  `json:"effect"`
	Why      string  `json:"why"` // what is known, and from where
}

//go:embed quirks.json
var quirkTable []byte

var builtin = sync.OnceValue(func() []Quirk {
	table, err := ParseQuirks(quirkTable)
	if err != nil {
		panic(err) // the table is part of the package and its tests read it
	}
	return table
})

// Quirks is the table that comes with the package.
func Quirks() []Quirk { return append([]Quirk(nil), builtin()...) }

// ParseQuirks reads a table: a JSON array of rows. An unknown field, a row that
// names no vendor, effect or reason, and anything behind the array are
// ErrInvalid.
func ParseQuirks(table []byte) ([]Quirk, error) {
	const op = "pipelinefile: quirks"
	decoder := json.NewDecoder(bytes.NewReader(table))
	decoder.DisallowUnknownFields()
	var rows []Quirk
	if err := decoder.Decode(&rows); err != nil {
		return nil, fault.Invalidf(op, "%v: want a JSON array of rows with vendor, driver_id, api_below, effect and why", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, fault.Invalidf(op, "something follows the array")
	}
	var errs []error
	for i, q := range rows {
		if err := q.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("row %d: %w", i, err))
		}
	}
	return rows, errors.Join(errs...)
}

// Validate is ErrInvalid for a row that says too little or what cannot be read.
func (q Quirk) Validate() error {
	_, vendor := q.vendor()
	_, api := q.apiBelow()
	if vendor != nil || api != nil || q.Effect != Off && q.Effect != Serialise || strings.TrimSpace(q.Why) == "" {
		return fault.Invalidf("pipelinefile: quirk", "%+v: want a vendor such as 0x5143, api_below such as 1.0.66 or none, effect off or serialise, and why", q)
	}
	return nil
}

func (q Quirk) vendor() (uint64, error) {
	digits, hex := strings.CutPrefix(q.Vendor, "0x")
	if !hex {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseUint(digits, 16, 32)
}

// variantBits are the highest of a packed version: Vulkan itself or another API
// of its kind. They say nothing of age.
const variantBits = 29

// apiBelow packs a version as Vulkan does; empty is above every version.
func (q Quirk) apiBelow() (uint32, error) {
	if q.APIBelow == "" {
		return 1 << variantBits, nil
	}
	parts := strings.Split(q.APIBelow, ".")
	if len(parts) != 3 {
		return 0, strconv.ErrSyntax
	}
	var packed uint32
	for i, width := range [...]int{7, 10, 12} { // bits of major, minor and patch
		n, err := strconv.ParseUint(parts[i], 10, width)
		if err != nil {
			return 0, err
		}
		packed = packed<<width | uint32(n)
	}
	return packed, nil
}

func (q Quirk) matches(id *Identity) bool {
	vendor, _ := q.vendor() // validated
	below, _ := q.apiBelow()
	return uint64(id.Vendor) == vendor && (q.DriverID == nil || *q.DriverID == id.DriverID) && id.API&(1<<variantBits-1) < below
}

// effectOn is what the table does to a driver; empty = nothing.
func effectOn(id *Identity, table []Quirk) (effect Effect) {
	for _, q := range table {
		if q.matches(id) && effect != Off {
			effect = q.Effect
		}
	}
	return effect
}
