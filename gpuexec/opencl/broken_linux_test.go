//go:build linux && (amd64 || arm64)

package opencl

import (
	"errors"
	"strings"
	"testing"

	"github.com/kiln-cache/kiln/fault"
)

// P11: a driver that builds nothing, as PoCL does whose cache's folder cannot be written,
// has not said anything of a blob or a source; one that builds other programs has.
func TestDriverThatBuildsNothing(t *testing.T) {
	needDevice(t)
	opened, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	src := sourceOf(t, 5)
	made, err := opened.Compile(bg, src)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Release()
	blob, err := made.Blob(bg)
	if err != nil {
		t.Fatal(err)
	}
	before := native.Load()
	for _, f := range []function{clBuildProgram, clCreateProgramWithBinary} {
		for _, all := range []bool{true, false} {
			calls := 0
			hook := func(called function) int32 {
				if called == f || called == clBuildProgram {
					if calls++; all || calls == 1 {
						return buildFailed
					}
				}
				return success
			}
			for what, try := range map[string]func() (any, error){
				"load":    func() (any, error) { p, err := opened.Load(bg, src, blob); return p, err },
				"compile": func() (any, error) { p, err := opened.Compile(bg, src); return p, err },
			} {
				calls = 0
				want := fault.ErrUnavailable
				if !all {
					want = map[string]error{"load": fault.ErrRefused, "compile": fault.ErrInvalid}[what]
				}
				inject.Store(&hook)
				_, err := try()
				inject.Store(nil)
				if !errors.Is(err, want) || all && (errors.Is(err, fault.ErrRefused) || !strings.Contains(err.Error(), "POCL_CACHE_DIR")) {
					t.Errorf("%s, %s fails, each build does: %t: %v, want %v", what, f, all, err, want)
				}
			}
		}
	}
	if now := native.Load(); now != before {
		t.Errorf("%d objects are left", now-before)
	}
}
