package canon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrEncoding is found in every error of Walk.
var ErrEncoding = errors.New("not a canonical encoding")

// deepest is more than any key needs; it bounds the recursion.
const deepest = 32

// Value is one decoded value. Which field holds it is said by Type.
type Value struct {
	Tag    Tag
	Type   Type
	Uint   uint64
	Int    int64
	Float  float64
	Bytes  []byte // aliases the encoding
	Ints   []int64
	Values []Value
}

// Walk decodes all values of an encoding, or explains why it is none.
func Walk(enc []byte) ([]Value, error) {
	d := decoder{rest: enc, size: len(enc)}
	var values []Value
	for len(d.rest) > 0 {
		v, err := d.value(0)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}

type decoder struct {
	rest []byte
	size int
}

func (d *decoder) bad(what string) error {
	return fmt.Errorf("%w: %s at byte %d", ErrEncoding, what, d.size-len(d.rest))
}

func (d *decoder) uvarint() (uint64, error) {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 {
		return 0, d.bad("a number is cut off or too large")
	}
	if n > 1 && d.rest[n-1] == 0 {
		return 0, d.bad("a number is longer than it needs to be")
	}
	d.rest = d.rest[n:]
	return v, nil
}

func (d *decoder) varint() (int64, error) {
	u, err := d.uvarint()
	return int64(u>>1) ^ -int64(u&1), err
}

// length reads a count of things that take at least one byte each.
func (d *decoder) length() (int, error) {
	n, err := d.uvarint()
	if err == nil && n > uint64(len(d.rest)) {
		err = d.bad("a length goes beyond the end")
	}
	return int(n), err
}

func (d *decoder) value(depth int) (Value, error) {
	if depth > deepest {
		return Value{}, d.bad("nested too deeply")
	}
	head, err := d.uvarint()
	if err != nil {
		return Value{}, err
	}
	if head>>3 > math.MaxUint32 {
		return Value{}, d.bad("a tag is too large")
	}
	v := Value{Tag: Tag(head >> 3), Type: Type(head & 7)}
	switch v.Type {
	case Uint:
		v.Uint, err = d.uvarint()
	case Int:
		v.Int, err = d.varint()
	case Bytes:
		var n int
		if n, err = d.length(); err == nil {
			v.Bytes, d.rest = d.rest[:n:n], d.rest[n:]
		}
	case Float:
		if len(d.rest) < 8 {
			return v, d.bad("a number is cut off")
		}
		v.Float, d.rest = math.Float64frombits(binary.LittleEndian.Uint64(d.rest)), d.rest[8:]
	case Ints:
		var n int
		if n, err = d.length(); err != nil {
			return v, err
		}
		v.Ints = make([]int64, n)
		for i := 0; i < n && err == nil; i++ {
			v.Ints[i], err = d.varint()
		}
	case Group:
		var n int
		if n, err = d.length(); err != nil {
			return v, err
		}
		for i := 0; i < n && err == nil; i++ {
			var inner Value
			inner, err = d.value(depth + 1)
			v.Values = append(v.Values, inner)
		}
	default:
		err = d.bad("an unknown type")
	}
	return v, err
}
