//go:build linux && (amd64 || arm64)

package fakecuda

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kiln-cache/kiln/gpuexec/cuda/internal/ptx"
)

// functions are the driver's, by their symbols.
func (d *Driver) functions() map[string]any {
	return map[string]any{
		"cuInit":                       func(flags uint32) int32 { return success },
		"cuDriverGetVersion":           func(v *int32) int32 { *v = d.Version; return success },
		"cuGetErrorName":               d.errorName,
		"cuDeviceGetCount":             func(n *int32) int32 { *n = int32(len(d.mu.contexts)); return success },
		"cuDeviceGet":                  d.deviceGet,
		"cuDeviceGetName":              d.deviceName,
		"cuDeviceGetAttribute":         d.attribute,
		"cuDeviceTotalMem_v2":          d.totalMemory,
		"cuDevicePrimaryCtxRetain":     d.retain,
		"cuDevicePrimaryCtxRelease_v2": d.releaseContext,
		"cuDevicePrimaryCtxReset_v2":   d.reset,
		"cuCtxPushCurrent_v2":          d.push,
		"cuCtxPopCurrent_v2":           d.pop,
		"cuStreamCreate":               d.streamCreate,
		"cuStreamSynchronize":          d.streamSynchronize,
		"cuStreamDestroy_v2":           d.streamDestroy,
		"cuEventCreate":                d.eventCreate,
		"cuEventRecord":                d.eventRecord,
		"cuEventSynchronize":           d.eventSynchronize,
		"cuEventElapsedTime":           d.elapsed,
		"cuEventDestroy_v2":            func(h uintptr) int32 { return forget[*event](d, h) },
		"cuMemAlloc_v2":                d.alloc,
		"cuMemFree_v2":                 d.free,
		"cuMemAllocHost_v2":            d.allocHost,
		"cuMemFreeHost":                d.freeHost,
		"cuMemsetD8Async":              d.fill,
		"cuMemcpyHtoDAsync_v2":         d.toDevice,
		"cuMemcpyDtoHAsync_v2":         d.toHost,
		"cuModuleLoadData":             d.load,
		"cuModuleGetFunction":          d.function,
		"cuModuleUnload":               d.unload,
		"cuFuncGetAttribute":           d.functionAttribute,
		"cuFuncSetAttribute":           d.setFunctionAttribute,
		"cuLaunchKernel":               d.launch,
		"cuMemPoolCreate":              d.poolCreate,
		"cuMemPoolSetAttribute":        d.setPoolAttribute,
		"cuMemPoolDestroy":             func(h uintptr) int32 { return forget[*pool](d, h) },
		"cuMemAllocFromPoolAsync":      d.allocFromPool,
		"cuMemFreeAsync":               d.freeAsync,
		"cuStreamBeginCapture_v2":      d.beginCapture,
		"cuStreamEndCapture":           d.endCapture,
		"cuGraphInstantiateWithFlags":  d.instantiate,
		"cuGraphLaunch":                d.launchGraph,
		"cuGraphExecDestroy":           func(h uintptr) int32 { return forget[*plan](d, h) },
		"cuGraphDestroy":               func(h uintptr) int32 { return forget[*graph](d, h) },
	}
}

func (d *Driver) errorName(code int32, into **byte) int32 {
	if d.names[code] == nil {
		return invalidValue
	}
	*into = d.names[code]
	return success
}

// device gives what an ordinal stands for.
func (d *Driver) device(ordinal int32) (*primary, int32) {
	if ordinal < 0 || int(ordinal) >= len(d.mu.contexts) {
		return nil, invalidDevice
	}
	return d.mu.contexts[ordinal], success
}

func (d *Driver) deviceGet(into *int32, ordinal int32) int32 {
	_, code := d.device(ordinal)
	*into = ordinal
	return code
}

func (d *Driver) deviceName(into *byte, n, ordinal int32) int32 {
	p, code := d.device(ordinal)
	if code == success {
		clear(unsafe.Slice(into, n))
		copy(unsafe.Slice(into, n-1), p.Name)
	}
	return code
}

const (
	mostThreads = 1024
	plainShared = 48 << 10
	mostShared  = 99 << 10
)

// The most threads of a block and blocks of a grid in x, y and z. GPUs have the same ones in
// two of them: here whoever takes one for another is told.
var (
	mostBlock = [3]uint32{mostThreads, 512, 64}
	mostGrid  = [3]uint32{1<<31 - 1, 65535, 32767}
)

// within reports whether a size is one that a launch may have.
func within(size, most [3]uint32) bool {
	for i, n := range size {
		if n == 0 || n > most[i] {
			return false
		}
	}
	return true
}

func (d *Driver) attribute(into *int32, what, ordinal int32) int32 {
	p, code := d.device(ordinal)
	if code != success {
		return code
	}
	known := map[int32]int{1: mostThreads, 2: int(mostBlock[0]), 3: int(mostBlock[1]), 4: int(mostBlock[2]),
		5: int(mostGrid[0]), 6: int(mostGrid[1]), 7: int(mostGrid[2]),
		8: plainShared, 16: 4, 20: p.Mode, 75: p.Capability / 10, 76: p.Capability % 10, 97: mostShared, 115: 1}
	value, ok := known[what]
	if !ok {
		return invalidValue
	}
	*into = int32(value)
	return success
}

func (d *Driver) totalMemory(into *uintptr, ordinal int32) int32 {
	p, code := d.device(ordinal)
	if code == success {
		*into = uintptr(p.Memory)
	}
	return code
}

func (d *Driver) retain(into *uintptr, ordinal int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.device(ordinal)
	if code != success || p.sticky != success {
		return max(code, p.sticky)
	}
	if p.users == 0 {
		p.handle = d.add(p)
	}
	p.users++
	*into = p.handle
	return success
}

func (d *Driver) releaseContext(ordinal int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.device(ordinal)
	if code != success || p.users == 0 {
		return invalidContext
	}
	if p.users--; p.users == 0 {
		d.destroy(p)
		delete(d.mu.objects, p.handle)
	}
	return success
}

func (d *Driver) reset(ordinal int32) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.device(ordinal)
	if code == success {
		d.destroy(p)
	}
	return code
}

func (d *Driver) push(handle uintptr) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.mu.objects[handle].(*primary)
	if !ok {
		return invalidContext
	}
	d.mu.current[unix.Gettid()] = append(d.mu.current[unix.Gettid()], p)
	return success
}

func (d *Driver) pop(into *uintptr) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	thread := unix.Gettid()
	stack := d.mu.current[thread]
	if len(stack) == 0 {
		return invalidContext
	}
	*into = stack[len(stack)-1].handle
	if d.mu.current[thread] = stack[:len(stack)-1]; len(stack) == 1 {
		delete(d.mu.current, thread)
	}
	return success
}

// make puts a new object of the current context at an address.
func (d *Driver) make(into *uintptr, object func(*primary) any) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.here()
	if code == success {
		*into = d.add(object(p))
	}
	return code
}

// forget destroys one.
func forget[T any](d *Driver, handle uintptr) int32 {
	_, _, code := object[T](d, handle)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, known := d.mu.objects[handle].(T); known {
		delete(d.mu.objects, handle)
	}
	return code
}

// streamCreate refuses a stream that waits for the default one, as flags of 0 ask for: other
// code of the process may use that.
func (d *Driver) streamCreate(into *uintptr, flags uint32) int32 {
	if flags != 1 {
		return invalidValue
	}
	return d.make(into, func(p *primary) any { return &stream{of: p} })
}

func (d *Driver) streamSynchronize(handle uintptr) int32 {
	s, _, code := object[*stream](d, handle)
	switch {
	case code != success:
		return code
	case s.captures():
		return captureUnsupported
	}
	return d.drain(s)
}

func (d *Driver) streamDestroy(handle uintptr) int32 {
	if s, _, code := object[*stream](d, handle); code == success {
		d.drain(s)
	}
	return forget[*stream](d, handle)
}

func (d *Driver) alloc(into *uintptr, bytes uintptr) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.here()
	switch {
	case code != success:
		return code
	case bytes == 0:
		return invalidValue
	case bytes > uintptr(p.Memory-p.used):
		return outOfMemory
	}
	made := make([]byte, bytes)
	for i := range min(len(made), 64) {
		made[i] = 0xee // what is not cleared is not zero
	}
	p.blocks = append(p.blocks, block{p.next, made}) // addresses grow, so they are in order
	*into = p.next
	p.used += int(bytes)
	const apart = 512 // an access beyond the end meets nothing
	p.next += (bytes + 2*apart) &^ (apart - 1)
	return success
}

func (d *Driver) free(at uintptr) int32 {
	d.mu.Lock()
	p, code := d.here()
	d.mu.Unlock()
	if p == nil {
		return code
	}
	d.drainAll(p) // memory is given back when all work is done
	d.mu.Lock()
	defer d.mu.Unlock()
	return max(p.forget(at), p.sticky)
}

// poolProperties is CUmemPoolProps.
type poolProperties struct {
	kind, handles int32
	location      [2]int32
	_             uintptr
	most          uintptr
	reserved      [56]byte
}

func (d *Driver) poolCreate(into *uintptr, props *poolProperties) int32 {
	if _, code := d.device(props.location[1]); code != success {
		return code
	}
	if props.kind != 1 || props.handles != 0 || props.location[0] != 1 || props.most != 0 || props.reserved != [56]byte{} {
		return invalidValue
	}
	return d.make(into, func(p *primary) any { return &pool{of: p} })
}

func (d *Driver) setPoolAttribute(handle uintptr, what int32, value *uint64) int32 {
	o, p, code := object[*pool](d, handle)
	if code != success {
		return code
	}
	if what != 4 || *value > uint64(p.Memory) {
		return invalidValue
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	o.keeps = *value
	return success
}

// allocFromPool has the work of the stream done where memory lacks: what it frees is there
// then.
func (d *Driver) allocFromPool(into *uintptr, bytes, from, on uintptr) int32 {
	s, _, code := object[*stream](d, on)
	if code != success {
		return code
	}
	if _, _, code := object[*pool](d, from); code != success {
		return code
	}
	if code = d.alloc(into, bytes); code == outOfMemory && d.drain(s) == success {
		code = d.alloc(into, bytes)
	}
	return code
}

// freeAsync frees when the stream comes to it, whatever others still do with the memory.
func (d *Driver) freeAsync(at, on uintptr) int32 {
	s, p, code := object[*stream](d, on)
	if code != success {
		return code
	}
	return s.add(func() int32 {
		d.mu.Lock()
		defer d.mu.Unlock()
		return p.forget(at)
	})
}

// forget takes a block of memory away; under mu.
func (p *primary) forget(at uintptr) int32 {
	i := slices.IndexFunc(p.blocks, func(b block) bool { return b.at == at })
	if i < 0 {
		return invalidValue
	}
	p.used -= len(p.blocks[i].bytes)
	p.blocks = slices.Delete(p.blocks, i, i+1)
	return success
}

func (d *Driver) allocHost(into **byte, bytes uintptr) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, code := d.here()
	if code == success {
		made := make([]byte, bytes)
		d.mu.pinned[&made[0]] = pinned{p, made}
		*into = &made[0]
	}
	return code
}

func (d *Driver) freeHost(at *byte) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.pinned[at].of == nil {
		return invalidValue
	}
	delete(d.mu.pinned, at)
	return success
}

// of gives n bytes of device memory to fn.
func (d *Driver) of(on, at, n uintptr, fn func([]byte)) int32 {
	s, p, code := object[*stream](d, on)
	if code != success {
		return code
	}
	if _, err := d.memoryOf(p).Bytes(uint64(at), int(n)); err != nil {
		return invalidValue
	}
	return s.add(func() int32 {
		b, err := d.memoryOf(p).Bytes(uint64(at), int(n))
		if err != nil {
			return illegalAddress
		}
		fn(b)
		return success
	})
}

// add leaves work for a stream, or for the graph that captures it.
func (s *stream) add(work ...func() int32) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.graph != nil {
		s.graph.work = append(s.graph.work, work...)
	} else {
		s.work = append(s.work, work...)
	}
	return success
}

func (d *Driver) fill(at uintptr, value uint8, n, on uintptr) int32 {
	return d.of(on, at, n, func(b []byte) {
		if value == 0 {
			clear(b) // much quicker
			return
		}
		for i := range b {
			b[i] = value
		}
	})
}

// isPinned tells whether n bytes of the host are pinned: others may move, or go, before a
// stream comes to them.
func (d *Driver) isPinned(at *byte, n uintptr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return uintptr(len(d.mu.pinned[at].bytes)) >= n
}

func (d *Driver) toDevice(to uintptr, from *byte, n, on uintptr) int32 {
	if !d.isPinned(from, n) {
		return invalidValue
	}
	return d.of(on, to, n, func(b []byte) { copy(b, unsafe.Slice(from, n)) })
}

func (d *Driver) toHost(to *byte, from, n, on uintptr) int32 {
	if !d.isPinned(to, n) {
		return invalidValue
	}
	return d.of(on, from, n, func(b []byte) { copy(unsafe.Slice(to, n), b) })
}

// load makes a module of PTX, or of a cubin with its PTX behind it.
func (d *Driver) load(into *uintptr, image *byte) int32 {
	d.mu.Lock()
	p, code := d.here()
	d.mu.Unlock()
	if code != success {
		return code
	}
	if binary.LittleEndian.Uint32(unsafe.Slice(image, 4)) == 0x464c457f {
		header := unsafe.Slice(image, 64)
		le := binary.LittleEndian
		end := uint64(0)
		for _, at := range [][2]int{{32, 54}, {40, 58}} {
			end = max(end, le.Uint64(header[at[0]:])+uint64(le.Uint16(header[at[1]:]))*uint64(le.Uint16(header[at[1]+2:])))
		}
		if sm := int(le.Uint32(header[48:]) >> 8 & 0xff); sm/10 != p.Capability/10 || sm > p.Capability {
			return noBinary
		}
		image = (*byte)(unsafe.Add(unsafe.Pointer(image), end))
	}
	parsed, err := ptx.Parse(text(image))
	switch {
	case err != nil:
		return invalidPTX
	case number(parsed.Version) > number(d.ISA):
		return unsupportedPTX
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.loads++
	*into = d.add(&module{of: p, parsed: parsed})
	return success
}

func number(version string) float64 {
	n, _ := strconv.ParseFloat(version, 64)
	return n
}

func (d *Driver) function(into *uintptr, of uintptr, name *byte) int32 {
	m, _, code := object[*module](d, of)
	if code != success {
		return code
	}
	entry, ok := m.parsed.Entry(string(text(name)))
	if !ok {
		return notFound
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	*into = d.add(&kernel{m, entry, plainShared})
	return success
}

func (d *Driver) unload(handle uintptr) int32 {
	m, p, code := object[*module](d, handle)
	if code == success {
		d.drainAll(p)
	}
	d.mu.Lock()
	for h, o := range d.mu.objects {
		if k, ok := o.(*kernel); ok && m != nil && k.module == m {
			delete(d.mu.objects, h)
		}
	}
	d.mu.Unlock()
	return forget[*module](d, handle)
}

func (d *Driver) functionAttribute(into *int32, what int32, handle uintptr) int32 {
	k, _, code := object[*kernel](d, handle)
	switch {
	case code != success:
		return code
	case what != 1: // bytes of shared memory
		return invalidValue
	}
	*into = int32(k.entry.Shared())
	return success
}

func (d *Driver) setFunctionAttribute(handle uintptr, what, value int32) int32 {
	k, _, code := object[*kernel](d, handle)
	switch {
	case code != success:
		return code
	case what != 8 || value < 0 || int(value)+k.entry.Shared() > mostShared:
		return invalidValue
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	k.dynamic = uint32(value)
	return success
}

func (d *Driver) launch(handle uintptr, gx, gy, gz, bx, by, bz, shared uint32, on uintptr, params *unsafe.Pointer, extra uintptr) int32 {
	k, p, code := object[*kernel](d, handle)
	if code != success {
		return code
	}
	s, _, code := object[*stream](d, on)
	if code != success {
		return code
	}
	grid, threads := [3]uint32{gx, gy, gz}, [3]uint32{bx, by, bz}
	if !within(grid, mostGrid) || !within(threads, mostBlock) || bx*by*bz > mostThreads ||
		shared > k.dynamic || int(shared)+k.entry.Shared() > mostShared || extra != 0 {
		return invalidValue
	}
	var packed []byte // what the arguments point to may go when this returns
	for i, param := range k.entry.Params() {
		packed = append(packed, make([]byte, param.Offset+param.Size-len(packed))...)
		at := *(*unsafe.Pointer)(unsafe.Add(unsafe.Pointer(params), uintptr(i)*unsafe.Sizeof(uintptr(0))))
		copy(packed[param.Offset:], unsafe.Slice((*byte)(at), param.Size))
	}
	return s.add(func() int32 {
		s.clock += 1 + float32(k.entry.Shared())/1024
		err := k.entry.Run(context.Background(), ptx.Launch{Grid: grid, Block: threads, Dynamic: shared, Params: packed, Memory: d.memoryOf(p)})
		return codeOf(err)
	})
}

// codeOf is what a driver says of a kernel that faulted.
func codeOf(err error) int32 {
	failed, faulted := errors.AsType[*ptx.Fault](err)
	switch {
	case err == nil:
		return success
	case !faulted:
		return launchFailed
	}
	switch failed.Kind {
	case ptx.IllegalAddress:
		return illegalAddress
	case ptx.Misaligned:
		return misaligned
	case ptx.Deadlock:
		return timeout
	}
	return launchFailed
}
