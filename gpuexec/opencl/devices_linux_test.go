//go:build linux && (amd64 || arm64)

package opencl

import (
	"errors"
	"reflect"
	"slices"
	"testing"

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

// E2: processors come last, the others as their drivers list them; each has the number of its place.
func TestOrderOfDevices(t *testing.T) {
	const gpu, byDefault = 4, 1
	all := []found{{id: 1, kind: typeCPU}, {id: 2, kind: gpu}, {id: 3, kind: typeCPU | byDefault}, {id: 4, kind: gpu | byDefault}}
	order(all)
	for i, want := range []handle{2, 4, 1, 3} {
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
