package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// image is what a driver makes a module of: a cubin, which may be empty, and its PTX behind
// it, with the zero that ends it.
type image struct {
	bytes []byte
	ptx   int // where that begins
}

// newImage puts a cubin and a PTX together.
func newImage(cubin, ptx []byte) image {
	return image{append(append(make([]byte, 0, len(cubin)+len(ptx)), cubin...), ptx...), len(cubin)}
}

// content is an image as a blob has it.
func (m image) content() []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(m.ptx)), m.bytes...)
}

// imageOf reads a blob's content, which is whole and of its source.
func imageOf(content []byte) (image, error) {
	const head = 8 // so that the cubin lies as its fields ask for
	if len(content) < head || binary.LittleEndian.Uint64(content) > uint64(len(content)-head) {
		return image{}, refused(fault.Truncated, "", "no image")
	}
	m := image{content[head:], int(binary.LittleEndian.Uint64(content))}
	if n := len(m.bytes); m.ptx == n || m.bytes[n-1] != 0 {
		return image{}, refused(fault.Truncated, "", "no PTX that has an end")
	}
	return m, nil
}

// refused is an image that a driver must not get.
func refused(reason fault.Reason, field, format string, args ...any) error {
	err := failure("load", fault.ErrRefused, format, args...)
	err.Reason, err.Field = reason, field
	return err
}

const (
	headerBytes = 64
	machineCUDA = 190
	newABI      = 8 // of a cubin; from it on its architecture stands in another byte
)

// checkCubin says why a cubin must not be given to a device of a compute capability: a
// driver checks little. Code runs on its own capability and on later minor ones.
func checkCubin(b []byte, capability int) error {
	if len(b) < headerBytes {
		return refused(fault.Truncated, "", "a cubin of %d bytes", len(b))
	}
	le := binary.LittleEndian
	if string(b[:6]) != "\x7fELF\x02\x01" || le.Uint16(b[18:]) != machineCUDA {
		return refused(fault.DriverHeader, "", "no cubin")
	}
	// The tables of sections and segments stand behind all else.
	end := uint64(headerBytes)
	for _, table := range []struct{ offset, size, count uint64 }{
		{le.Uint64(b[32:]), uint64(le.Uint16(b[54:])), uint64(le.Uint16(b[56:]))},
		{le.Uint64(b[40:]), uint64(le.Uint16(b[58:])), uint64(le.Uint16(b[60:]))},
	} {
		if table.offset > math.MaxInt64 {
			return refused(fault.DriverHeader, "", "a cubin with a table at %d", table.offset)
		}
		end = max(end, table.offset+table.size*table.count)
	}
	switch n := uint64(len(b)); {
	case end > n:
		return refused(fault.Truncated, "", "a cubin of %d bytes, want %d", n, end)
	case end < n:
		return refused(fault.Trailing, "", "a cubin of %d bytes, want %d", n, end)
	}
	flags := le.Uint32(b[48:])
	sm := int(flags & 0xff)
	if b[8] >= newABI {
		sm = int(flags >> 8 & 0xff)
	}
	if sm/10 != capability/10 || sm%10 > capability%10 {
		return refused(fault.DeviceMismatch, "device", "a cubin for compute capability %d.%d, the device has %d.%d", sm/10, sm%10, capability/10, capability%10)
	}
	return nil
}

var (
	entryHead = regexp.MustCompile(`(?m)^\s*(?:\.visible\s+)?\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?`)
	parameter = regexp.MustCompile(`\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(?:\s+\.ptr(?:\s+\.\w+)?(?:\s+\.align\s+\d+)?)?\s+[\w$%]+(?:\[(\d+)\])?`)
	floats    = map[gpuexec.ParamKind]bool{gpuexec.ParamF32: true, gpuexec.ParamF64: true}
)

// checkParams holds a source's parameters against the kernel's, as its PTX has them: a
// driver reads as many bytes as the kernel has, wherever it is told to (SPEC E3).
func checkParams(ptx []byte, entry string, params []gpuexec.Param) error {
	var list string
	known := false
	for _, m := range entryHead.FindAllSubmatch(ptx, -1) {
		if string(m[1]) == entry {
			list, known = string(m[2]), true
		}
	}
	if !known {
		return failure("compile", fault.ErrInvalid, "the program has no kernel %q: declare it extern \"C\" __global__ void", entry)
	}
	taken := parameter.FindAllStringSubmatch(list, -1)
	if n := strings.Count(list, ".param"); n != len(taken) {
		return failure("compile", fault.ErrUnsupported, "kernel %s: the parameters are of a form that is not known here: %s", entry, list)
	}
	i, local := 0, 0
	for at, p := range params {
		if p.Kind == gpuexec.ParamLocal {
			if local++; local > 1 {
				return failure("compile", fault.ErrInvalid, "kernel %s: parameter %d is a second local memory: a kernel has one", entry, at)
			}
			continue
		}
		if i < len(taken) {
			if why := misfit(p, taken[i][1], taken[i][2]); why != "" {
				return failure("compile", fault.ErrInvalid, "kernel %s: parameter %d is %s", entry, at, why)
			}
		}
		i++
	}
	if i != len(taken) {
		return failure("compile", fault.ErrInvalid, "kernel %s takes %d arguments, the source has %d parameters beside local memory", entry, len(taken), i)
	}
	return nil
}

// misfit says what is wrong with a parameter for a kernel that takes a type there, or an
// array of that many; empty: it fits.
func misfit(p gpuexec.Param, typed, count string) string {
	bits, _ := strconv.ParseInt(strings.TrimLeft(typed, "busf"), 10, 64)
	bytes := bits / 8
	if count != "" {
		n, _ := strconv.ParseInt(count, 10, 64)
		bytes *= n
	}
	want, number := bytesOf[p.Kind]
	switch {
	case p.Kind == gpuexec.ParamBuffer:
		want = 8
	case !number:
		want = p.Bytes
	}
	array := count != ""
	if want == bytes && (p.Kind == gpuexec.ParamStruct) == array && floats[p.Kind] == (strings.HasPrefix(typed, "f") && !array) {
		return ""
	}
	return fmt.Sprintf("of %d bytes, and not for a .%s of %d, which the kernel takes there", want, typed, bytes)
}

// bytesOf has the size of each kind of number.
var bytesOf = map[gpuexec.ParamKind]int64{
	gpuexec.ParamI8: 1, gpuexec.ParamU8: 1, gpuexec.ParamI16: 2, gpuexec.ParamU16: 2, gpuexec.ParamI32: 4, gpuexec.ParamU32: 4,
	gpuexec.ParamF32: 4, gpuexec.ParamI64: 8, gpuexec.ParamU64: 8, gpuexec.ParamF64: 8,
}
