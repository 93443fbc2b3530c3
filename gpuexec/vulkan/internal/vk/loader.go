//go:build linux && (amd64 || arm64)

package vk

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec/internal/dl"
)

// soname is the loader's, of the Debian package libvulkan1.
const soname = "libvulkan.so.1"

// Version packs a version as Vulkan does.
func Version(major, minor uint32) uint32 { return major<<22 | minor<<12 }

// least is the version that instances and devices must have: their properties tell
// the driver and its build since then.
var least = Version(1, 2)

// proc is a function of the loader or of a driver.
type proc struct {
	at   uintptr
	name string
}

// call calls it. What an argument points to, and what that points to, stays where it
// is meanwhile.
//
//go:uintptrescapes
func (p *proc) call(args ...uintptr) Result {
	r, _, _ := purego.SyscallN(p.at, args...)
	return Result(int32(r))
}

// do is call for a result that is an error or nothing.
//
//go:uintptrescapes
func (p *proc) do(args ...uintptr) error {
	if err := p.fault(); err != nil {
		return err
	}
	r, _, _ := purego.SyscallN(p.at, args...)
	return failed(p.name, Result(int32(r)))
}

// fault is the error that a test wants of a call.
func (p *proc) fault() error {
	if f := faults.Load(); f != nil {
		return failed(p.name, (*f)(p.name))
	}
	return nil
}

// faults, if it is set, is asked before each call that may fail; what it answers below 0
// is the result, and the driver is not called.
var faults atomic.Pointer[func(call string) Result]

// Fail sets what is asked before each call that may fail: for tests. nil ends that.
func Fail(f func(call string) Result) {
	if f == nil {
		faults.Store(nil)
		return
	}
	faults.Store(&f)
}

// table is functions by their names, filled by find.
type table map[string]*proc

// find looks each function up with one that gives addresses: get(of, name).
func (t table) find(get *proc, of uintptr) error {
	var errs []error
	for name, p := range t {
		text := cString(name)
		at, _, _ := purego.SyscallN(get.at, of, uintptr(unsafe.Pointer(text)))
		if at == 0 {
			errs = append(errs, fmt.Errorf("%s is missing: %w", name, fault.ErrUnavailable))
		}
		*p = proc{at, name}
	}
	return errors.Join(errs...)
}

func cString(text string) *byte { return &append([]byte(text), 0)[0] }

// Text is the text of a C string in an array.
func Text(s []byte) string {
	for i, c := range s {
		if c == 0 {
			return string(s[:i])
		}
	}
	return string(s)
}

// Instance is the process's connection to all drivers. It stays for the life of the
// process: drivers that are loaded twice have lost their state too often.
type Instance struct {
	handle uintptr

	enumerate, properties, families, memory, features, extensions, createDevice, deviceProc proc
}

// Open loads the loader and makes the instance, once a process. ErrUnavailable says
// what to install.
var Open = sync.OnceValues(open)

func open() (*Instance, error) {
	lib, err := dl.Open(soname, dl.Local)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	get := proc{name: "vkGetInstanceProcAddr"}
	if get.at, err = purego.Dlsym(lib, get.name); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrUnavailable, err)
	}
	var version, create proc
	if err := (table{"vkEnumerateInstanceVersion": &version, "vkCreateInstance": &create}).find(&get, 0); err != nil {
		return nil, err
	}
	api := uint32(0)
	if err := version.do(uintptr(unsafe.Pointer(&api))); err != nil {
		return nil, err
	}
	if api < least {
		return nil, fmt.Errorf("%w: the loader has version %d.%d, want 1.2 or later", fault.ErrUnavailable, api>>22, api>>12&0x3ff)
	}
	i := &Instance{}
	info := instanceCreate{head: head{Type: typeInstanceCreate}, app: &applicationInfo{
		head: head{Type: typeApplicationInfo}, name: cString("kiln"), engine: cString("kiln"), api: Version(1, 3),
	}}
	if err := create.do(uintptr(unsafe.Pointer(&info)), 0, uintptr(unsafe.Pointer(&i.handle))); err != nil {
		return nil, err
	}
	return i, table{
		"vkEnumeratePhysicalDevices":               &i.enumerate,
		"vkGetPhysicalDeviceProperties2":           &i.properties,
		"vkGetPhysicalDeviceQueueFamilyProperties": &i.families,
		"vkGetPhysicalDeviceMemoryProperties":      &i.memory,
		"vkGetPhysicalDeviceFeatures2":             &i.features,
		"vkEnumerateDeviceExtensionProperties":     &i.extensions,
		"vkCreateDevice":                           &i.createDevice,
		"vkGetDeviceProcAddr":                      &i.deviceProc,
	}.find(&get, i.handle)
}

// Old reports whether the device's version is below 1.2: then nothing but its
// Properties is known, and it cannot be opened.
func (p *Physical) Old() bool { return p.API < least }

// Physical is a device as the driver describes it.
type Physical struct {
	instance *Instance
	handle   uintptr

	Properties
	IDs       IDs
	Driver    DriverProperties
	Subgroups SubgroupSizes
	Families  []QueueFamily
	Types     []MemoryType
	Heaps     []MemoryHeap
}

// Devices gives all that the loader knows, in its order.
func (i *Instance) Devices() ([]*Physical, error) {
	n := uint32(0)
	if err := i.enumerate.do(i.handle, uintptr(unsafe.Pointer(&n)), 0); err != nil || n == 0 {
		return nil, err
	}
	handles := make([]uintptr, n)
	if err := i.enumerate.do(i.handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&handles[0]))); err != nil {
		return nil, err
	}
	all := make([]*Physical, n)
	for at, h := range handles[:n] {
		all[at] = i.describe(h)
	}
	return all, nil
}

func (i *Instance) describe(handle uintptr) *Physical {
	p := &Physical{instance: i, handle: handle}
	all := &properties2{head: head{Type: typeProperties2}}
	i.properties.call(handle, uintptr(unsafe.Pointer(all)))
	if p.Properties = all.Properties; p.Old() {
		return p
	}
	p.Subgroups.Type, p.Driver.Type, p.IDs.Type = typeSubgroupProperties, typeDriverProperties, typeIDProperties
	p.Driver.Next = unsafe.Pointer(&p.IDs)
	if p.API >= Version(1, 3) {
		p.IDs.Next = unsafe.Pointer(&p.Subgroups)
	}
	all.Next = unsafe.Pointer(&p.Driver)
	i.properties.call(handle, uintptr(unsafe.Pointer(all)))
	p.Driver.Next, p.IDs.Next = nil, nil

	n := uint32(0)
	i.families.call(handle, uintptr(unsafe.Pointer(&n)), 0)
	if n > 0 {
		p.Families = make([]QueueFamily, n)
		i.families.call(handle, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&p.Families[0])))
		p.Families = p.Families[:n]
	}
	m := &memoryProperties{}
	i.memory.call(handle, uintptr(unsafe.Pointer(m)))
	p.Types, p.Heaps = m.typeList[:m.types], m.heapList[:m.heaps]
	return p
}
