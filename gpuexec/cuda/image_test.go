package cuda

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// cubin is a header with tables, and nothing else that a check could look at.
func cubin(abi byte, flags uint32) []byte {
	b := make([]byte, 64+56+64)
	copy(b, "\x7fELF\x02\x01\x01")
	b[8] = abi
	le := binary.LittleEndian
	le.PutUint16(b[18:], machineCUDA)
	le.PutUint64(b[32:], 64) // a segment
	le.PutUint64(b[40:], 64+56)
	le.PutUint32(b[48:], flags)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 1)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], 1)
	return b
}

// P3, P11: a cubin goes to a driver if it is whole and for the device: for its major
// capability, and no later a minor one.
func TestCubin(t *testing.T) {
	const new80, new86, new90, old80, old90a = 0x06005004, 0x06005604, 0x06005a04, 0x00500550, 0x005a0d5a
	for _, c := range []struct {
		abi        byte
		flags      uint32
		capability int
		want       fault.Reason
	}{
		{8, new80, 80, ""}, {8, new80, 86, ""}, {8, new80, 90, fault.DeviceMismatch}, {8, new86, 80, fault.DeviceMismatch}, {8, new90, 80, fault.DeviceMismatch},
		{8, new90, 90, ""}, {7, old80, 80, ""}, {7, old80, 89, ""}, {7, old80, 75, fault.DeviceMismatch}, {7, old90a, 90, ""}, {7, old90a, 100, fault.DeviceMismatch},
	} {
		err := checkCubin(cubin(c.abi, c.flags), c.capability)
		if reason, _ := fault.ReasonOf(err); reason != c.want || (err == nil) != (c.want == "") {
			t.Errorf("ABI %d, flags %#x, capability %d: %v, want %q", c.abi, c.flags, c.capability, err, c.want)
		}
	}
	sound := cubin(8, new80)
	change := func(at int, to byte) []byte {
		b := append([]byte(nil), sound...)
		b[at] = to
		return b
	}
	for what, c := range map[string]struct {
		b    []byte
		want fault.Reason
	}{
		"longer": {append(sound, 0), fault.Trailing}, "no header": {sound[:63], fault.Truncated}, "no ELF": {change(0, 0), fault.DriverHeader},
		"32 bits": {change(4, 1), fault.DriverHeader}, "another machine": {change(18, 62), fault.DriverHeader},
		"more sections": {change(60, 2), fault.Truncated}, "far away": {change(47, 0x80), fault.DriverHeader}, "quite far": {change(47, 0x7f), fault.Truncated},
	} {
		if reason, _ := fault.ReasonOf(checkCubin(c.b, 80)); reason != c.want {
			t.Errorf("%s: %q, want %q", what, reason, c.want)
		}
	}
	for n := range sound {
		if err := checkCubin(sound[:n], 80); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%d of %d bytes: %v", n, len(sound), err)
		}
	}
}

// B3: an image that is not one is refused, whatever it says of its length.
func TestImage(t *testing.T) {
	sound := newImage([]byte("cubin"), []byte("ptx\x00"))
	m, err := imageOf(sound.content())
	if err != nil || string(m.bytes[:m.ptx]) != "cubin" || string(m.bytes[m.ptx:]) != "ptx\x00" {
		t.Errorf("%q, %v", m.bytes, err)
	}
	for _, bad := range []string{"", "\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00", "\x01\x00\x00\x00\x00\x00\x00\x00a",
		"\xff\xff\xff\xff\xff\xff\xff\xffabc\x00", "\x01\x00\x00\x00\x00\x00\x00\x00abc"} {
		if _, err := imageOf([]byte(bad)); !errors.Is(err, fault.ErrRefused) {
			t.Errorf("%q: %v, want ErrRefused", bad, err)
		}
	}
}

// E3: parameters are those of the kernel, by PTX of any compiler.
func TestParameters(t *testing.T) {
	const text = ".visible .entry other()\n{\n}\n.entry k(\n\t.param .u64 .ptr .global .align 4 k_param_0,\n\t.param .align 8 .b8 k_param_1[16],\n\t.param .f32 k_param_2\n)\n{ }\n"
	right := []gpuexec.Param{{Kind: gpuexec.ParamBuffer}, {Kind: gpuexec.ParamStruct, Bytes: 16}, {Kind: gpuexec.ParamLocal}, {Kind: gpuexec.ParamF32}}
	if err := checkParams([]byte(text), "k", right); err != nil {
		t.Error(err)
	}
	if err := checkParams([]byte(text), "other", nil); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		text   string
		params []gpuexec.Param
		kind   error
	}{
		"no kernel":       {".func k()", nil, fault.ErrInvalid},
		"a form unknown":  {".entry k(.param .texref a)", []gpuexec.Param{{Kind: gpuexec.ParamBuffer}}, fault.ErrInvalid},
		"a form unread":   {".entry k(.param %a)", []gpuexec.Param{{Kind: gpuexec.ParamBuffer}}, fault.ErrUnsupported},
		"fewer":           {text, right[:2], fault.ErrInvalid},
		"a smaller array": {text, []gpuexec.Param{right[0], {Kind: gpuexec.ParamStruct, Bytes: 8}, right[3]}, fault.ErrInvalid},
		"a number":        {text, []gpuexec.Param{right[0], {Kind: gpuexec.ParamF64}, right[3]}, fault.ErrInvalid},
	} {
		if err := checkParams([]byte(c.text), "k", c.params); !errors.Is(err, c.kind) {
			t.Errorf("%s: %v, want %v", what, err, c.kind)
		}
	}
}
