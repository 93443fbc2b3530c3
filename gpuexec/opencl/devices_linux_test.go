//go:build linux && (amd64 || arm64)

package opencl

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kiln-cache/kiln/fault"
	"github.com/kiln-cache/kiln/gpuexec"
)

// E1, E2: a query that fails once is that once. The device is not available meanwhile.
func TestQueryFailsOnce(t *testing.T) {
	needDevice(t)
	_, truth, err := devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []function{clGetDeviceIDs, clGetDeviceInfo, clGetPlatformInfo} {
		for nth, calls := 1, 1; calls >= nth; nth++ {
			calls = 0
			hook := func(called function) int32 {
				if called == f {
					if calls++; calls == nth {
						return outOfHostMemory
					}
				}
				return success
			}
			loaded.Lock()
			loaded.devices = nil
			loaded.Unlock()
			inject.Store(&hook)
			infos, err := list()
			inject.Store(nil)
			whole := err == nil && !slices.ContainsFunc(infos, func(i gpuexec.DeviceInfo) bool { return !i.Available }) && len(infos) == len(truth)
			if whole != (calls < nth) {
				t.Errorf("%s fails at call %d of %d: %v, %v", f, nth, calls, infos, err)
			}
			if _, now, err := devices(); err != nil || !reflect.DeepEqual(now, truth) {
				t.Errorf("%s failed at call %d: later %v, want %v; %v", f, nth, now, truth, err)
			}
		}
	}
	opened, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	hook := func(called function) int32 {
		if called == clGetKernelInfo {
			return outOfHostMemory
		}
		return success
	}
	inject.Store(&hook)
	defer inject.Store(nil)
	if _, err := opened.Compile(bg, sourceOf(t, 1)); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge of the driver", err)
	}
}

// E2: processors come behind the others, which are as their drivers list them, and what cannot be used
// comes last; each has the number of its place.
func TestOrderOfDevices(t *testing.T) {
	const gpu, byDefault = 4, 1
	usable := gpuexec.DeviceInfo{Available: true}
	all := []found{
		{id: 5, kind: gpu}, {id: 1, kind: typeCPU, info: usable}, {id: 6, kind: typeCPU}, {id: 2, kind: gpu, info: usable},
		{id: 3, kind: typeCPU | byDefault, info: usable}, {id: 4, kind: gpu | byDefault, info: usable},
	}
	order(all)
	for i, want := range []handle{2, 4, 1, 3, 5, 6} {
		if all[i].id != want || all[i].info.Index != i {
			t.Errorf("place %d has device %d, number %d, want device %d", i, all[i].id, all[i].info.Index, want)
		}
	}
}

// A processor's memory is the host's, so that no copy goes through a stage.
func TestMemoryOfProcessors(t *testing.T) {
	needDevice(t)
	_, all, err := devices()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.kind&typeCPU != 0 && !d.unified {
			t.Errorf("%s has memory of its own", d.info.Name)
		}
	}
}

// saying is a library whose devices say that of themselves, and 1 of all else.
func saying(what map[uintptr][]byte) *library {
	l := new(library)
	tell := purego.NewCallback(func(_, asked, room uintptr, value *byte, length *uintptr) uintptr {
		answer := what[asked]
		if answer == nil {
			answer = []byte{1, 0, 0, 0, 0, 0, 0, 0}
		}
		if length != nil {
			*length = uintptr(len(answer))
		}
		if value != nil {
			copy(unsafe.Slice(value, room), answer)
		}
		return success
	})
	l.at[clGetDeviceInfo], l.at[clGetPlatformInfo] = tell, tell
	return l
}

// E2: a device whose driver is too old is listed with what is to be done, and is not opened:
// it may lack functions.
func TestDriverThatIsTooOld(t *testing.T) {
	says := map[uintptr][]byte{deviceName: []byte("gpu\x00"), deviceType: {4}}
	l := saying(says)
	for api, usable := range map[string]bool{
		"OpenCL 1.0 AMD": false, "OpenCL 1.1 Mesa 10": false, "OpenCL 0.9": false, "": false, "Vulkan 1.2": false,
		"OpenCL 1.2 ": true, "OpenCL 1.10": true, "OpenCL 2.0 beignet": true, "OpenCL 3.0 CUDA": true, "OpenCL 10.1": true,
	} {
		says[deviceVersion] = []byte(api + "\x00")
		d, err := l.describe(1, 2)
		if err != nil || d.info.Available != usable || d.info.Name != "gpu" || d.kind != 4 {
			t.Errorf("%q: %+v, %v", api, d.info, err)
		}
		if !usable && (!strings.Contains(d.info.Reason, "1.2 or later: install a newer one") || d.info.Identity.Build != "") {
			t.Errorf("%q: %+v, want what to do", api, d.info)
		}
	}
}

// E3: a device without a bound on its blocks, as it says by the largest numbers, has none: they
// are not taken for numbers below zero.
func TestLimitsWithoutABound(t *testing.T) {
	most := binary.LittleEndian.AppendUint64(nil, math.MaxUint64)
	d, err := saying(map[uintptr][]byte{deviceVersion: []byte("OpenCL 3.0\x00"), deviceMaxItemSizes: slices.Repeat(most, 4),
		deviceMaxItems: most, deviceLocalMemory: most, deviceMaxAlloc: most, deviceMemory: most}).describe(1, 2)
	want := gpuexec.Limits{MaxBlock: gpuexec.Size{math.MaxInt, math.MaxInt, math.MaxInt}, MaxItems: math.MaxInt, MaxLocal: math.MaxInt64, Alignment: 1, CompileWorkers: 2}
	if err != nil || d.limits != want || d.mostBytes != math.MaxInt64 || d.info.MemoryBytes != math.MaxInt64 {
		t.Errorf("%v: %+v, want %+v", err, d, want)
	}
	if n := d.side(); n != 64 {
		t.Errorf("products in tiles of %d, want 64", n)
	}
}
